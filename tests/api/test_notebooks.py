"""The notebooks in examples/ run from top to bottom, and what they show is what they are committed with."""

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import HANG

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
MAX_LINES, MAX_BYTES = 10, 100_000


def read(path: Path) -> Any:
    return pytest.importorskip("nbformat", reason="needs nbformat: pip install nbformat").read(path, 4)


def code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def texts(notebook: Any) -> list[str]:
    """What the cells show as text, in order."""
    outputs = [output for cell in code(notebook) for output in cell.outputs]
    return [output.data["text/plain"] for output in outputs if "text/plain" in output.get("data", {})]


@pytest.fixture(scope="module")
def executed() -> Iterator[Callable[[str], Any]]:
    """The notebook of a name in examples/ after a run. Each runs once, however many tests look at it."""

    nbclient = pytest.importorskip("nbclient", reason="needs nbclient: pip install nbclient")
    pytest.importorskip("ipykernel", reason="needs ipykernel: pip install ipykernel")

    @functools.cache
    def run(name: str) -> Any:
        path = ROOT / "examples" / f"{name}.ipynb"
        notebook, where = read(path), {"metadata": {"path": str(path.parent)}}
        nbclient.NotebookClient(
            notebook, timeout=int(HANG), startup_timeout=int(HANG), kernel_name="python3", resources=where
        ).execute()
        return notebook

    with pytest.MonkeyPatch.context() as patch:
        # The kernel imports this tree, and one thread keeps it quick beside the other tests.
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield run


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_is_committed_with_its_outputs(
    path: Path, executed: Callable[[str], Any]
) -> None:
    committed = read(path)
    assert all(cell.execution_count for cell in code(committed))
    assert path.stat().st_size < MAX_BYTES
    # A second run shows as much as the committed one; figures may differ from machine to machine.
    assert len(texts(executed(path.stem))) == len(texts(committed))


def test_the_quickstart_is_ten_lines_and_finds_the_four_groups(executed: Callable[[str], Any]) -> None:
    notebook = executed("quickstart")
    lines = [line for cell in code(notebook) for line in cell.source.splitlines() if line.strip()]
    assert len(lines) <= MAX_LINES
    result, placement, _ = texts(notebook)
    assert "4 clusters of 8 devices" in result
    homes = dict(line.split()[:2] for line in result.splitlines()[1:])
    assert all(homes[f"ward-{number}"] == homes[f"ward-{number + 4}"] for number in range(4))
    assert f"cluster='{homes['ward-1']}'" in placement
    images = [each for cell in code(notebook) for each in cell.outputs if "image/png" in each.get("data", {})]
    assert len(images) == 1


def test_the_algorithm_of_the_notebook_keeps_every_rule(executed: Callable[[str], Any]) -> None:
    notebook = executed("new_algorithm")
    verdict = code(notebook)[-1].outputs[0].text
    assert verdict.splitlines()[-1] == "nova keeps every rule"
