"""A result that `Result.save` wrote, read again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.core.errors import ConfigError
from shoal.core.verdict import Verdict
from shoal.result import Accuracy, Comparison, NotKnown, Placement, Result, Round
from shoal.shell import weights

SIMULATE_AGAIN = (
    "the data are not in the folder: run shoal.simulate again, which trains the same models from the same "
    "data and seeds"
)


class SavedResult(Result):
    """What was found, as it was saved in a folder: see `Result.load`."""

    def __init__(self, folder: Path) -> None:
        self._folder, file = folder, folder / "result.json"
        try:
            self._found = found = json.loads(file.read_bytes())
            self.algorithm, self.facts = found["algorithm"], found["facts"]
            self.clusters = {row["device"]: row["cluster"] for row in found["devices"]}
            self.history = [Round(**each) for each in found["history"]]
            self.class_names = None if found["class_names"] is None else tuple(found["class_names"])
            self.remarks = tuple(found.get("remarks", ()))
            judged = found["verdict"]
            self._verdict = judged and Verdict(**{key: judged[key] for key in judged if key != "text"})
            names = found.get("models", sorted({*self.clusters.values()}))
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = error.strerror if isinstance(error, OSError) else f"it is not what was saved: {error}"
            raise ConfigError(f"{file}: {why}", "name the folder of result.save(folder)") from None
        self.models = {name: weights.load(folder / f"{name}.safetensors") for name in names}

    @property
    def accuracy(self) -> Accuracy:
        found = {row["device"]: row["accuracy"] for row in self.rows()}
        return Accuracy({name: each for name, each in found.items() if each is not None})

    @property
    def verdict(self) -> Verdict | None:
        return self._verdict

    def place(self, x: Any, y: Any = None) -> Placement:
        raise NotKnown("a saved result cannot place newcomers", SIMULATE_AGAIN)

    def compare(self, *algorithms: str, progress: bool | Callable[[str], None] | None = None) -> Comparison:
        raise NotKnown("a saved result cannot be compared with other algorithms", SIMULATE_AGAIN)

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._found["devices"]
        return found

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = self._found
        return found

    def _onnx(self, cluster: str) -> bytes:
        self.weights(cluster)
        try:
            return (self._folder / f"{cluster}.onnx").read_bytes()
        except OSError:
            return super()._onnx(cluster)

    def _model(self) -> Any:
        raise NotKnown("a file has no network", "give it: result.module(cluster, model=Net)")
