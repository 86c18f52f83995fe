"""The runs of the demo, and the same runs again by `run start --like`: are their models the same bits?

Everything is as in the demo: a server and eight devices as processes of their own, over mutual TLS. The
devices train twice, the second time for what `--like` has started.

    python -m benchmarks.repeat_demo
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from fedserver.rpc.client import OperatorClient
from shoal.core.types import RunId
from shoal.demo.processes import ALGORITHMS, Stage, prepared, spec
from shoal.shell.console import Console


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = played(Path(folder) / "demo")
    print(json.dumps(found, indent=2))
    sys.exit(0 if all(each["same"] for each in found.values()) else 1)


def played(folder: Path) -> dict[str, dict[str, object]]:
    """By run: how many models it has, whether the repeated run has the same ones, and both accuracies."""
    stage, found = Stage(prepared(folder), Console()), {}
    with stage.server(), OperatorClient(stage.folder / "server") as operator:
        stage.join(operator)
        first = {name: operator.start_run(spec(name), None).run for name in ALGORITHMS}
        with stage.trainers():
            before = stage.watch(operator, first)
        again = {name: repeated(stage.folder / "server", run) for name, run in first.items()}
        with stage.trainers():
            after = stage.watch(operator, again)
        for name in ALGORITHMS:
            models = [
                {key: model.blob.sha256 for key, model in status.models.items()}
                for status in (before[name], after[name])
            ]
            found[name] = {
                "models": len(models[0]),
                "same": models[0] == models[1] and before[name].clusters == after[name].clusters,
                "accuracy": [before[name].summary.accuracy, after[name].summary.accuracy],
            }
    return found


def repeated(state: Path, run: RunId) -> RunId:
    """Start a run again, as an operator does; the new one's name."""
    line = ["fedserver", "run", "start", f"{run}-again", "--like", run, "--state", str(state), "--json"]
    ended = subprocess.run([sys.executable, "-m", *line], check=True, capture_output=True, text=True)
    return RunId(json.loads(ended.stdout)["data"]["run"])


if __name__ == "__main__":
    main()
