"""What a model says of data, classes and probabilities or numbers, and the files that both are read from and
written to.

`fedclient place` may write a mixture of models. Each is a file like any other, so that a program that knows
nothing of mixtures can use the one that fits best, model.safetensors. Its header names the files of all, with
their shares: so one rename replaces the whole mixture.

The header also has a digest of the weights and of the rest of the header, and that of the graph beside it:
with a bit that flipped on the disk, it would still be a model, and predict wrongly. Files without a digest
are used as they are: other programs write none.
"""

import csv
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from shoal.core.data.scale import RESERVED
from shoal.core.errors import DataFault, NotFound
from shoal.core.exchange.tensors import Manifest, digest
from shoal.core.types import Array, Tensors
from shoal.shell.disk import replacing, storing

Mixture = Sequence[tuple[float, Tensors]]
"""Models, each with its share in the probabilities; the shares sum to 1. One model has the share 1."""
MIXTURE = "mixture"
"""The name under which the header of a model's file has a mixture's files and their shares, as JSON."""
DIGEST, GRAPH_DIGEST = "digest", "graph"
"""The same for its digest, and for that of the graph that it belongs to."""
NEXT_GRAPH = "graph-next.onnx"
"""Beside a model for a moment: the graph of the one that is being written."""
TRIES = 3
"""How many times a mixture is read that another process is replacing meanwhile."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """classes: (n,) int64, the likeliest. probabilities: (n, C) float32. accuracy: None without labels.

    values: of regression, (n,) float32, the predicted numbers; classes are then 0, and the accuracy is the
    share of the labels' variance that is explained. names: of class 0, 1 and so on; empty where they have
    none.
    """

    classes: Array
    probabilities: Array
    accuracy: float | None
    values: Array | None = None
    names: Sequence[str] = ()

    @classmethod
    def of(cls, said: Array, accuracy: float | None, regression: bool) -> "Prediction":
        """Of what `shoal.core.inference.network.predicted` gives."""
        if not regression:
            return cls(said.argmax(axis=1), said, accuracy)
        return cls(np.zeros(len(said), np.int64), np.ones((len(said), 1), np.float32), accuracy, said)

    def name(self, number: int) -> str:
        """Of a class: its number, where it has no other name."""
        return self.names[number] if number < len(self.names) else str(number)

    def counts(self) -> dict[int, int]:
        """How many samples of each class there are."""
        classes, counts = np.unique(self.classes, return_counts=True)
        return dict(zip(classes.tolist(), counts.tolist(), strict=True))


def sealed(tensors: Tensors, facts: Mapping[str, str]) -> dict[str, str]:
    """The header of a file of these weights: the facts, and a digest of both."""
    return {**facts, DIGEST: _digest(tensors, facts)}


def _digest(tensors: Tensors, header: Mapping[str, str]) -> str:
    facts = sorted((name, text) for name, text in header.items() if name != DIGEST)
    weights = digest({name: tensors[name] for name in sorted(tensors)})
    return hashlib.sha256(json.dumps([weights, facts]).encode()).hexdigest()


def read_model(path: Path) -> Tensors:
    """The tensors of a safetensors file. Raises NotFound, and DataFault for one that is damaged, too."""
    return _read(path)[0]


def _read(path: Path) -> tuple[Tensors, dict[str, str]]:
    """The tensors and the header of one file, whatever takes its place meanwhile."""
    try:
        with safe_open(path, "numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            header = dict(file.metadata() or {})
    except FileNotFoundError:
        raise NotFound(
            f"there is no model {path}", "run `fedclient place` first, or give one with --model"
        ) from None
    except (SafetensorError, OSError) as error:
        raise _no_model(path, error) from None
    if DIGEST in header and header[DIGEST] != _digest(tensors, header):
        raise DataFault(f"{path} is damaged: it is not what was written", "run `fedclient place` again")
    return tensors, header


def arranged(model: Tensors, manifest: Manifest) -> Tensors:
    """The tensors in the order of a manifest, then those of a scale in theirs, and others at the end: a file
    has an order of its own."""
    names = [*(spec.name for spec in manifest), *RESERVED]
    place = {name: number for number, name in enumerate(names)}
    return {name: model[name] for name in sorted(model, key=lambda each: (place.get(each, len(place)), each))}


def graph_beside(graph: Path, model: Path) -> bytes:
    """The graph that the model's header names; the one in `graph`, if it names none.

    A process that was killed while it replaced both may have left that of the model under another name.
    Raises NotFound, and DataFault where no file here is the one that is named.
    """
    found = list[bytes]()
    for path in (graph, graph.with_name(NEXT_GRAPH), graph):  # again, as it may have been renamed meanwhile
        with storing(path):
            found += [path.read_bytes()] if path.exists() else []
    if not found:
        raise NotFound(
            f"there is no graph {graph}",
            "set `learner`, or run `fedclient place` on a run with a graph first",
        )
    named = header_of(model).get(GRAPH_DIGEST)
    for data in found:
        if named in (None, hashlib.sha256(data).hexdigest()):
            return data
    raise DataFault(
        f"{graph} is damaged: it is not the graph that {model} was placed with", "run `fedclient place` again"
    )


def read_mixture(path: Path) -> Mixture:
    """The models by which the one in `path` predicts, as its header names them; itself, if it names none.

    Raises NotFound, and DataFault for one that is damaged, too.
    """
    for _ in range(TRIES):
        own, header = _read(path)
        try:
            found = [
                (share, own if name == path.name else read_model(path.with_name(name)))
                for name, share in files_of(path, header).items()
            ]
        except NotFound as error:
            missing = error.message
        else:
            if header_of(path) == header:
                return found
            missing = f"{path} is being replaced"
    raise DataFault(f"a model of the mixture cannot be read: {missing}", "run `fedclient place` again")


def files_of(path: Path, header: Mapping[str, str]) -> dict[str, float]:
    """The names of the files of a mixture, each with its share. Raises DataFault."""
    if MIXTURE not in header:
        return {path.name: 1.0}
    try:
        found = {str(name): float(share) for name, share in json.loads(header[MIXTURE]).items()}
        if not found or any(Path(name).name != name or not share > 0.0 for name, share in found.items()):
            raise ValueError(f"its mixture is {header[MIXTURE]}")
    except (ValueError, TypeError, AttributeError) as error:
        raise _no_model(path, error) from None
    return found


def header_of(path: Path) -> dict[str, str]:
    """What is known of a model besides its tensors. Raises as `read_model`."""
    try:
        with safe_open(path, "numpy") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError):
        read_model(path)  # says what is wrong
        raise


def _no_model(path: Path, error: Exception) -> DataFault:
    return DataFault(
        f"{path} is not a model: {error}", "give a safetensors file, or run `fedclient place` again"
    )


def write(path: Path, prediction: Prediction) -> None:
    """An npz file of `classes` and `probabilities`, or of `values`; else csv with a row for each sample.

    Where classes have names, the npz file has them as `names`, and csv has a column `name`.
    """
    names, values = prediction.names, prediction.values
    with replacing(path) as file:
        if path.suffix.lower() == ".npz":
            found = {"classes": prediction.classes, "probabilities": prediction.probabilities}
            found |= {"names": np.array(names)} if names else {}
            np.savez(file, **(found if values is None else {"values": values}))  # type: ignore[arg-type]
            return
        text = io.StringIO(newline="")
        lines = csv.writer(text, lineterminator="\n")
        if values is not None:
            lines.writerow(["row", "value"])
            lines.writerows([row, f"{value:.9g}"] for row, value in enumerate(values))
        else:
            columns = [f"p{c}" for c in range(prediction.probabilities.shape[1])]
            lines.writerow(["row", "class", *(["name"] if names else []), *columns])
            for row, (label, line) in enumerate(
                zip(prediction.classes, prediction.probabilities, strict=True)
            ):
                name = [prediction.name(int(label))] if names else []
                lines.writerow([row, label, *name, *(f"{p:.6g}" for p in line)])
        file.write(text.getvalue().encode())
