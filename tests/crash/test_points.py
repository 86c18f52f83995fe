"""A kill -9 at every named point: the same round goes on, what was acknowledged counts once, same models."""

import re
import signal
from pathlib import Path

import pytest

import shoal
from shoal.core.errors import ConfigError
from shoal.shell import crash
from tests.crash.lab import BUILT, INLINE, acknowledged, check, end, lived
from tests.postgresql import Cluster
from tests.server.servers import DEVICES, ROUNDS

ELSEWHERE = {
    *("server.backup-copied", "server.restored", "server.stepped-in", "server.folder-named"),
    *("server.store-moved", "server.spooled", "server.release-stored", "server.channel-moved"),
    *("server.device-withdrawn", "server.device-forgetting"),
    *("server.rollout-begun", "server.counts-committing", "server.counts-stored", "device.counts-kept"),
    *("device.debited", "device.drawn", "device.release-stored", "device.release-noted"),
    *("device.reserved", "device.given-back", "server.graph-taken", "server.answer-committing"),
    *("device.wheel-kept", "device.release-arrived", "device.trial-due", "device.trial-begun"),
    *("device.release-unpacked", "device.trial-judged", "device.release-started"),
    *("device.release-settled", "device.release-left"),
}
"""Points that this run does not pass: `test_backup.py`, `test_postgresql.py`, `test_migrate_store.py`,
`test_ledger.py`, `test_step_in.py`, in `tests/client/software` `test_launching.py`, and in `tests/e2e`
`test_releases.py`, `test_rollout.py`, `test_watching.py` and `test_withdrawal.py`
try them, and INSIDE below."""
USUAL = 5
"""Which passage is tried: one in the second round of three, where there is one for each report. Reports that
arrive together share a commit, so of its points there may be no more than one passage in each round."""
PASSAGES = {
    "disk.written": 7,
    "disk.synced": 24,
    "disk.renamed": 40,
    **dict.fromkeys(("server.booted", "server.scrubbed", "server.run-stored", "server.run-ended"), 1),
    "server.release-committing": 1,
    **dict.fromkeys(("server.opened", "server.reducing", "server.reduced", "server.state-stored"), 2),
    **dict.fromkeys(("server.round-committing", "server.round-saved", "server.round-tidied"), 2),
    **dict.fromkeys((f"server.report-{step}" for step in ("checked", "blobs-moved", "committing")), 3),
    **dict.fromkeys(("server.report-stored", "server.report-counted"), 3),
    **dict.fromkeys(("device.named", "device.welcomed"), 2),
}
CASES = [(name, PASSAGES.get(name, USUAL)) for name in crash.POINTS if name not in ELSEWHERE]


def passed_in(folder: Path) -> set[str]:
    """The points that the sources in `folder` pass, each a literal."""
    text = "".join(path.read_text() for path in folder.rglob("*.py"))
    found = re.findall(r'\bcrash\.point\("([a-z.-]+)"\)', text)
    assert len(found) == text.count("crash.point(")
    return set(found)


def test_every_point_of_the_table_is_passed_somewhere_and_no_other() -> None:
    sources = Path(shoal.__file__).parents[1]
    core, server, client = (passed_in(sources / name) for name in ("shoal", "fedserver", "fedclient"))
    assert core | server | client == set(crash.POINTS)
    assert {name.partition(".")[0] for name in core} == {"disk"}
    assert {name.partition(".")[0] for name in server} == {"server"}
    assert {name.partition(".")[0] for name in client} == {"device"}
    assert min(len(core | server), len(core | client)) >= 12


@pytest.mark.parametrize("value", ["server.nowhere", "disk.renamed:", "disk.renamed:0", "disk.renamed:x"])
def test_a_point_that_is_not_there_is_named(value: str) -> None:
    with pytest.raises(ConfigError, match=crash.VARIABLE):
        crash._parsed(value)


def test_without_a_crash(tmp_path: Path) -> None:
    assert lived(tmp_path) == 0
    check(tmp_path)
    assert len(acknowledged(tmp_path)) == DEVICES * (ROUNDS + 1)


@pytest.mark.parametrize(("name", "passage"), CASES)
def test_a_kill_at_this_point_changes_nothing(tmp_path: Path, name: str, passage: int) -> None:
    assert lived(tmp_path, f"{name}:{passage}") == -signal.SIGKILL
    assert lived(tmp_path) == 0
    check(tmp_path)


INSIDE = [
    *("server.spooled:2", "server.report-checked:3", "server.report-blobs-moved:3", "server.report-stored:3"),
    *("server.report-committing:3", "server.report-counted:3", "server.round-saved:2", "server.reduced:2"),
    *("device.task-taken:5", "device.fetched:5", "device.result-kept:5", "device.uploaded:5"),
    *("device.receipt-came:5", "server.scrubbed:1"),
]
"""The points that matter to models inside of tasks and reports."""


@pytest.mark.parametrize("point", INSIDE)
def test_a_kill_changes_nothing_when_models_are_inside_of_messages(tmp_path: Path, point: str) -> None:
    (tmp_path / INLINE).touch()
    assert lived(tmp_path, point) == -signal.SIGKILL
    assert lived(tmp_path) == 0
    check(tmp_path)


def test_a_kill_when_the_graph_of_the_first_weights_is_taken_changes_nothing(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for root in (whole, killed):
        root.mkdir()
        (root / BUILT).touch()
    assert lived(whole) == 0
    assert lived(killed, "server.graph-taken:1") == -signal.SIGKILL
    assert lived(killed) == 0
    assert end(whole)["graph"]
    assert [end(killed)[part] for part in ("standing", "graph", "models")] == [
        end(whole)[part] for part in ("standing", "graph", "models")
    ]


ON_POSTGRESQL = [
    *("server.folder-named:1", "server.booted:1", "server.report-blobs-moved:3"),
    *("server.report-committing:3", "server.report-stored:3", "server.state-stored:2"),
    *("server.round-committing:2", "server.round-saved:2", "server.run-ended:1"),
]
"""The points at which the database matters."""


@pytest.mark.parametrize("point", ON_POSTGRESQL)
def test_a_kill_at_this_point_changes_nothing_on_postgresql(
    postgresql: Cluster, tmp_path: Path, point: str
) -> None:
    (tmp_path / "database").write_text(postgresql.database())
    assert lived(tmp_path, point) == -signal.SIGKILL
    assert lived(tmp_path) == 0
    check(tmp_path)


def test_a_server_that_is_killed_at_every_start_goes_on_at_last(tmp_path: Path) -> None:
    for point in ("server.report-stored", "server.scrubbed", "server.scrubbed", "server.round-saved"):
        assert lived(tmp_path, point) == -signal.SIGKILL
    assert lived(tmp_path) == 0
    check(tmp_path)
