"""Tables of the papers: what they print stands in the files, and cells run, resume and are summed up."""

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from fedserver.__main__ import main
from shoal.core.algorithm import find
from shoal.core.errors import ConfigError, StorageFault
from shoal.shell.config import parsed
from shoal.simulation.simulated import SimulatedDevices
from shoal_lab import setting, tables
from shoal_lab.experiment import Experiment, run
from shoal_lab.tables import campaign, plot, worth
from shoal_lab.tables.markdown import page
from shoal_lab.tables.summary import at, summarise
from shoal_lab.tables.table import MEAN, Cell, Column, Figure, Method, Table
from tests.waiting import HANG

DIGITS = Experiment(dataset="digits", threads=1)


def small(*methods: Method) -> Table:
    columns = [Column("px-1", ("known", "test"), {"shift": "px", "level": 1, "clients": 4, "rounds": 2})]
    measures = {"known": ("accuracy", "known"), "test": ("accuracy", "test")}
    return Table("flux", 1, "A small table", measures, ("digits",), methods, columns)


def test_a_table_may_be_run_on_data_of_ones_own(tmp_path: Path) -> None:
    chance = np.random.default_rng(1)
    x = chance.integers(0, 255, (300, 8, 8), np.uint8)
    np.savez(tmp_path / "own.npz", x=x, y=(x.mean(axis=(1, 2)) > 127).astype(np.int64))
    small = ("--clients", "2", "--rounds", "2", "--samples", "50", "--out", str(tmp_path / "out"))
    chosen = ("--dataset", str(tmp_path / "own.npz"), "--columns", "px-1", "--methods", "fedavg")
    done = CliRunner().invoke(main, ["table", "--paper", "flux", "--table", "1", *chosen, *small, "--json"])
    assert done.exit_code == 0, done.stderr
    (cell,) = json.loads(done.stdout)["data"]["cells"].values()
    assert cell["clients"] == 2
    assert cell["dataset"] == str(tmp_path / "own.npz")
    refused = CliRunner().invoke(main, ["table", "--paper", "flux", "--table", "1", "--dataset", "hapt"])
    assert "table flux-1 is not for 'hapt'" in refused.stderr


@pytest.mark.parametrize(
    ("dataset", "method", "known", "test"),
    [
        ("mnist", "FedAvg", 80.9, 85.6),
        ("mnist", "Flux", 92.5, 94.0),
        ("mnist", "Flux-prior", 95.8, 95.7),
        ("fashion-mnist", "Flux", 79.4, 81.2),
        ("fashion-mnist", "FeSEM", 71.9, 66.2),
    ],
)
def test_the_published_cells_of_flux_have_the_means_that_its_table_1_prints(
    dataset: str, method: str, known: float, test: float
) -> None:
    published = tables.find("flux", 1).published(dataset)
    for measure, printed in (("known", known), ("test", test)):
        cells = [f.mean for (row, _, kind), f in published.items() if (row, kind) == (method, measure)]
        assert len(cells) == (32 if measure == "known" else 24)
        # It prints one decimal, and its own parts miss that by up to 0.12 (Flux on MNIST: 92.39).
        assert abs(float(np.mean(cells)) - printed) <= 0.12


@pytest.mark.parametrize(
    ("table", "dataset", "method", "measure", "printed"),
    [
        (("feroma", 1), "mnist", "FedAvg", "", 71.8),
        (("feroma", 1), "mnist", "FeSEM", "", 69.6),
        (("feroma", 1), "fashion-mnist", "CFL", "", 65.6),
        (("cornflqs", 3), "mnist", "cornflqs", "accuracy", 89.08),
        (("cornflqs", 3), "fashion-mnist", "fl+hc", "ari", 0.86),
    ],
)
def test_so_do_those_of_feroma_and_cornflqs(
    table: tuple[str, int], dataset: str, method: str, measure: str, printed: float
) -> None:
    published = tables.find(*table).published(dataset)
    cells = [f.mean for (row, _, kind), f in published.items() if row == method and kind in (measure or kind)]
    assert abs(float(np.mean(cells)) - printed) <= 0.06


def test_two_tables_of_fedrc_print_the_same_figures_of_the_same_experiments() -> None:
    first, more = (tables.find("fedrc", number) for number in (1, 4))
    for dataset in first.datasets:
        printed, again = first.published(dataset), more.published(dataset)
        assert len(printed) == 18
        assert {key: again[key] for key in printed} == printed
    cifar_100 = [figure.mean for (row, _, _), figure in more.published("cifar-100").items() if row == "CFL"]
    assert cifar_100 == [52.90, 1.65]


def test_fedrc_has_three_copies_of_cifar_where_the_paper_has() -> None:
    def copies(number: int, dataset: str) -> set[int]:
        cells = tables.find("fedrc", number).cells(Experiment(dataset=dataset), [42])
        return {cell.experiment.copies for cell in cells}

    assert [copies(number, "cifar-10") for number in (1, 2, 4, 5)] == [{3}, {1}, {3}, {3}]
    assert copies(1, "fashion-mnist") == {1}


@pytest.mark.parametrize("table", tables.TABLES.values(), ids=lambda table: table.name)
def test_every_table_s_rows_and_columns_are_there_and_its_published_figures_are_of_them(table: Table) -> None:
    for dataset in table.datasets:
        base = Experiment(dataset=dataset)
        cells, here = table.cells(base, [42]), table.columns_of(dataset)
        assert len(cells) == len(table.methods) * sum(len(column.parts) for column in here)
        assert len({cell.name for cell in cells}) == len(cells)
        for cell in cells:
            algorithm, variant = find(cell.experiment.algorithm)
            changes = {**variant, **cell.experiment.changes}
            if changes.get("clusters") == -1:  # an experiment puts the true number in its place
                changes["clusters"] = 4
            algorithm.configure(cell.experiment.preset, changes)
            setting.check(cell.experiment)
        columns = {column.name for column in here}
        published = table.published(dataset)
        assert published
        # A paper prints all columns, or only their mean.
        printed = {column for _, column, _ in published}
        assert printed == columns or printed == {MEAN}
        assert {measure for _, _, measure in published} <= set(table.measures)
        labels = {method for method, _, _ in published}
        assert labels & {method.label for method in table.methods}


@pytest.mark.parametrize("table", tables.TABLES.values(), ids=lambda table: table.name)
def test_every_measure_is_in_an_experiment_s_result(table: Table, result: Mapping[str, Any]) -> None:
    for place in table.measures.values():
        at(result, place)


@pytest.fixture(scope="module")
def result() -> Mapping[str, Any]:
    return run(Experiment("fedavg", clients=2, rounds=1, threads=1))


def test_every_table_of_the_papers_that_is_not_here_says_why() -> None:
    wanted = {
        "flux": [*range(1, 7), 8, *range(50, 67)],
        "feroma": [1, 2, *range(5, 11), *range(29, 34), *range(41, 51)],
        "fedrc": range(1, 6),
        "fmcl": [1],
        "cornflqs": range(1, 4),
    }
    for paper, numbers in wanted.items():
        for number in numbers:
            assert ((paper, number) in tables.TABLES) != ((paper, number) in tables.ELSEWHERE)
    with pytest.raises(ConfigError, match="no table 59 of 'flux' here: it needs CheXpert"):
        tables.find("flux", 59)


def test_a_data_set_changes_the_network_and_what_a_method_sets_and_nothing_else() -> None:
    cells = tables.find("fmcl", 1).cells(Experiment(dataset="imagenette"), [42])
    found = {cell.method.label: cell.experiment for cell in cells}
    assert {each.model for each in found.values()} == {"resnet18"}
    assert {each.changes["learning_rate"] for each in found.values()} == {0.01}
    assert found["FMCL"].changes["clusters"] == 5
    assert "clusters" not in found["FMCL (Auto-K)"].changes
    assert [each.name for each in tables.find("fedrc", 1).columns_of("cifar-10")] == ["cifar-10"]
    epochs = tables.find("fedrc", 5).cells(Experiment(dataset="cifar-10"), [42], ["FedRC"])
    assert [cell.experiment.changes["epochs"] for cell in epochs] == [1, 5]


def test_parameters_of_all_methods_come_last_and_leave_the_others(tmp_path: Path) -> None:
    scale = {"samples": 300, "changes": {"learning_rate": 0.05}}
    cells = tables.find("flux", 1).cells(
        Experiment(dataset="mnist"), [42], ["IFCA", "FedAvg"], ["px-1"], scale
    )
    assert [cell.experiment.changes for cell in cells] == [
        {"learning_rate": 0.05},
        {"clusters": -1, "learning_rate": 0.05},
    ]
    assert {cell.experiment.samples for cell in cells} == {300}
    asked = ["--samples", "300", "--set", "learning_rate=0.05", "--columns", "px-1", "--minutes", "0"]
    with contextlib.chdir(tmp_path):
        shown = CliRunner().invoke(main, ["table", *asked])
    assert "Setting: mnist, 300 samples, learning_rate 0.05." in shown.stdout
    folder = tmp_path / "runs/tables/flux-1-mnist-300-samples-learning_rate-0.05"
    assert (folder / "table.md").is_file()


def test_a_mean_that_the_paper_prints_stands_beside_the_mean_of_all_columns_only() -> None:
    table = tables.find("flux", 5)
    base = Experiment(dataset="mnist")
    cells = table.cells(base, [42], ["No DP"])
    results = {cell.name: {"accuracy": {"known": 90.0, "test": 91.0}} for cell in cells}
    grid = summarise(table, "mnist", cells, results)["known"]["No DP"]
    assert (grid["mean"]["mean"], grid["mean"]["paper"]) == (90.0, 92.86)
    part = {name: result for name, result in results.items() if "--px-" in name}
    assert summarise(table, "mnist", cells, part)["known"]["No DP"]["mean"]["paper"] is None


def test_methods_and_columns_are_chosen_by_name_or_pattern_and_a_wrong_one_is_named() -> None:
    table = tables.find("flux", 1)
    mnist = Experiment(dataset="mnist")
    names = [cell.name for cell in table.cells(mnist, [7], ["fedavg"], ["py-[12]"])]
    assert names == ["FedAvg--py-1--seed-7", "FedAvg--py-2--seed-7"]
    with pytest.raises(ConfigError, match="no column 'pz-1'"):
        table.cells(mnist, [7], [], ["pz-1"])
    with pytest.raises(ConfigError, match="not for 'digits'"):
        table.cells(DIGITS, [7])
    with pytest.raises(ConfigError, match="no table 9"):
        tables.find("flux", 9)


def test_what_tells_most_for_its_time_comes_first_and_what_is_stored_is_not_run_again() -> None:
    wide = replace(
        small(*(Method(name, name, "default") for name in ("fedavg", "fedprox", "ifca"))), number=2
    )
    narrow = small(Method("One", "fedavg", "default"), Method("Long", "flux", "default"))
    long = replace(narrow, columns=[replace(narrow.columns[0], options={"clients": 4, "rounds": 50})])
    cells = worth.cells_of([wide, narrow], DIGITS, [1])
    late = worth.cells_of([wide, long], DIGITS, [1])

    def order(cells: list[tuple[Table, Cell]], *done: str) -> list[str]:
        found = worth.in_order(cells, key, lambda cell: key(cell) in done)
        return list(dict.fromkeys(map(key, found)))

    def key(cell: Cell) -> str:
        return cell.experiment.algorithm

    assert len({cell.name for _, cell in cells}) == 5
    assert order(cells) == ["fedavg", "fedprox", "flux", "ifca"], "two tables have the first one"
    assert order(cells, "fedavg", "fedprox") == ["flux", "ifca"], "of its table less is known"
    assert order(late, "fedavg", "fedprox") == ["ifca", "flux"], "25 times as long"


def test_cells_are_run_once_and_a_failing_one_ends_alone(tmp_path: Path) -> None:
    table = small(
        Method("FedAvg", "fedavg", "default"),
        Method("Wrong", "fedavg", changes={"rounds": 0}),
        Method("Again", "fedavg", "default"),
    )
    cells = table.cells(DIGITS, [1], scale={"changes": dict([parsed("epochs=1")])})
    reported: list[str] = []

    def run(seconds: float) -> dict[str, str]:
        done = campaign.finished(cells, tmp_path)
        due = [cell for cell in cells if cell.name not in done]
        return campaign.run_cells(
            due, tmp_path, jobs=1, seconds=seconds, on_result=lambda cell, result: reported.append(cell.name)
        )

    assert run(0.0) == {}
    assert reported == []
    failed = run(600.0)
    assert list(failed) == ["Wrong--px-1--seed-1"]
    assert "rounds" in failed["Wrong--px-1--seed-1"]
    assert reported == ["FedAvg--px-1--seed-1", "Again--px-1--seed-1"]
    (path,) = (tmp_path / "cells").iterdir()  # the same experiment under two names is run once
    assert campaign.seeds(tmp_path) == [1]
    assert campaign.stored(cells, tmp_path) == 2
    kept = campaign.finished(cells, tmp_path)
    assert 0.0 < kept["FedAvg--px-1--seed-1"]["accuracy"]["known"] <= 100.0

    brief, again = campaign.kept_cells(cells, tmp_path).values()
    assert brief == again
    assert brief["settings"]["clients"] == 4
    assert brief["settings"]["changes"] == {"epochs": "1"}
    assert brief["figures"]["known"] == kept["FedAvg--px-1--seed-1"]["accuracy"]["known"]
    assert 100.0 * float(np.mean(brief["known"])) == pytest.approx(brief["figures"]["known"], abs=0.01)
    assert len(json.dumps(brief)) < 2000

    other = table.cells(Experiment(dataset="digits", threads=1, model_seed=7), [1])
    assert campaign.finished(other, tmp_path) == {}, "a result of other settings is none"
    path.write_bytes(path.read_bytes()[:40])
    assert campaign.finished(cells, tmp_path) == {}, "half a file is none"
    assert campaign.kept_cells(cells, tmp_path) == {}


class Ending:
    """A folder of data at which a cell ends, in the process that runs it."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __fspath__(self) -> str:
        if self.how == "death":
            os._exit(9)
        if self.how == "full":
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        raise ZeroDivisionError("unforeseen")


def test_whatever_ends_a_cell_ends_no_other(tmp_path: Path) -> None:
    (column,) = small().columns
    ends = ("full", "unforeseen", "death")
    failing = [
        Cell(Method(how, "fedavg"), column, "", Experiment(dataset="mnist", data_dir=Ending(how), seed=seed))  # type: ignore[arg-type]
        for seed, how in enumerate(ends)
    ]
    sound = small(Method("FedAvg", "fedavg", "default")).cells(DIGITS, [1, 2, 3])
    cells = [cell for pair in zip(failing, sound, strict=True) for cell in pair]
    done: list[str] = []
    failed = campaign.run_cells(
        cells, tmp_path, jobs=2, seconds=600.0, on_result=lambda cell, result: done.append(cell.name)
    )
    assert sorted(done) == [cell.name for cell in sound]
    assert set(campaign.finished(cells, tmp_path)) == set(done)
    full, unforeseen, death = (failed[cell.name] for cell in failing)
    assert full == ("the GPU has too little memory for it beside what else runs there (use fewer --jobs)")
    assert "ZeroDivisionError: unforeseen" in unforeseen
    assert "in __fspath__" in unforeseen, "its traceback"
    assert death == "its process died (is memory short? use fewer --jobs)"


def test_a_cell_gives_the_gpu_s_memory_back_when_nothing_of_it_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[tuple[int, BaseException | None]] = []

    def alive() -> int:
        return sum(isinstance(each, SimulatedDevices) for each in gc.get_objects())

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: found.append((alive() - before, sys.exception())))
    gc.collect()
    before = alive()
    assert campaign._run(Experiment("fedavg", clients=2, rounds=1, threads=1))["rounds"] == 1
    assert found[-1] == (0, None)
    monkeypatch.setattr(SimulatedDevices, "evaluated", _without_memory)
    assert "use fewer --jobs" in campaign._run(Experiment("fedavg", clients=2, rounds=1, threads=1))["failed"]
    assert found[-1] == (0, None)


KILLED = """
import os, signal, time
from shoal_lab.tables.campaign import process
if __name__ == "__main__":
    worker = process()
    worker.submit(os.getpid).result()
    worker.submit(time.sleep, 1e6)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_campaign_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    """Which would wait for cells forever. As long as one lives, the output that they share is open."""
    (tmp_path / "killed.py").write_text(KILLED)
    command = [sys.executable, str(tmp_path / "killed.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as running:
        try:
            assert running.communicate(timeout=HANG) == (b"", None)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == -signal.SIGKILL


def _without_memory(*arguments: Any) -> Any:
    raise torch.cuda.OutOfMemoryError("CUDA out of memory.")


def test_means_are_over_seeds_and_the_paper_s_over_the_same_columns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = small(Method("FedAvg", "fedavg"), Method("Mine", "flux"))
    cells = table.cells(DIGITS, [1, 2])
    found = dict(zip((cell.name for cell in cells), (90.0, 70.0, 94.0, 74.0), strict=True))
    results = {name: {"accuracy": {"known": value, "test": None}} for name, value in found.items()}
    figures = {("FedAvg", "px-1", "known"): Figure(91.0, 0.5)}
    monkeypatch.setattr(Table, "published", lambda self, dataset: figures)

    grids = summarise(table, "digits", cells, results)
    row = grids["known"]["FedAvg"]
    assert row["columns"]["px-1"] == {
        "mean": 92.0,
        "spread": pytest.approx(8**0.5),
        "seeds": [1, 2],
        "paper": 91.0,
        "paper_spread": 0.5,
    }
    assert row["mean"] == {"columns": 1, "mean": 92.0, "paper": 91.0}
    assert grids["known"]["Mine"]["mean"] == {"columns": 1, "mean": 72.0, "paper": None}
    assert grids["test"] == {}, "what no cell measured has no grid"

    text = page(table, "digits", grids, [])
    assert "| FedAvg | 92.0 ± 2.8 (91.0) | 92.0 (91.0) |" in text
    shares = {name: {"accuracy": {"known": value / 100}} for name, value in found.items()}
    known_only = replace(table, measures={"known": table.measures["known"]})
    text = page(known_only, "digits", summarise(known_only, "digits", cells, shares), [])
    assert "| FedAvg | 0.92 ± 0.03 (91.00) |" in text, "a spread has the digits of its mean"
    pytest.importorskip("matplotlib")
    assert plot.draw(table, "digits", grids, tmp_path / "table.png")
    assert (tmp_path / "table.png").read_bytes().startswith(b"\x89PNG")


def test_the_verb_lists_a_table_and_shows_what_was_run_without_running(tmp_path: Path) -> None:
    listed = CliRunner().invoke(main, ["table", "--list", "--table", "1", "--json"])
    assert "px-1" in json.loads(listed.stdout)["data"]["columns"]
    every = CliRunner().invoke(main, ["table", "--list", "--out", str(tmp_path)])
    lines = every.stdout.splitlines()
    assert len(lines) == len(tables.TABLES) + len(tables.ELSEWHERE)
    assert any(line.startswith("flux       1  can be run, 1664 a seed") for line in lines)
    assert any(line.startswith("flux      59  not here: it needs CheXpert") for line in lines)
    shown = CliRunner().invoke(
        main, ["table", "--minutes", "0", "--out", str(tmp_path), "--columns", "px-1", "--json"]
    )
    assert json.loads(shown.stdout)["data"]["cells"] == {}
    assert (tmp_path / "flux-1-mnist" / "table.md").read_text().startswith("# FLUX, Table 1")
    wrong = CliRunner().invoke(main, ["table", "--seeds", "a"])
    assert wrong.exit_code == 3
    assert "--seeds 'a'" in wrong.stderr


def test_what_a_gpu_has_computed_is_listed_as_that_and_a_seed_counts_once(tmp_path: Path) -> None:
    def lines(*asked: str) -> list[str]:
        done = CliRunner().invoke(main, ["table", "--out", str(tmp_path), *asked])
        assert done.exit_code == 0, done.stderr
        return [*done.stderr.splitlines(), *done.stdout.splitlines()]

    cell = tables.find("flux", 1).cells(Experiment(dataset="mnist", device="cuda", threads=1), [43])[0]
    path = campaign.path_of(tmp_path, cell)
    path.parent.mkdir()
    path.write_text("{}")
    assert any("1 stored of 1664 a seed" in line for line in lines("--list", "--device", "cuda"))
    assert not any("1 stored" in line for line in lines("--list"))
    shown = lines("--minutes", "0", "--columns", "px-1", "--methods", "fedavg", "--seeds", "43,44,43")
    assert shown[0].startswith("2 cells, 0 of them done")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("--paper", "all", "--dataset", "mnits"), "no table has the data set 'mnits'"),
        (("--paper", "flxu", "--list"), "there is no paper 'flxu' here"),
    ],
)
def test_a_wrong_name_is_not_taken_for_nothing_to_do(
    asked: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    wrong = CliRunner().invoke(main, ["table", "--out", str(tmp_path), "--minutes", "0", *asked])
    assert wrong.exit_code == ConfigError.exit_code
    assert said in wrong.stderr
    assert "did you mean" in wrong.stderr


def test_results_do_not_go_into_a_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    wrong = CliRunner().invoke(main, ["table", "--out", str(tmp_path / "out"), "--minutes", "0"])
    assert wrong.exit_code == StorageFault.exit_code
    assert "name a folder" in wrong.stderr
