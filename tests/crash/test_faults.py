"""A system call that fails, once, anywhere: what was acknowledged counts once, and the models are the same.

An error ends the process that met it, or makes it try again; either way the next start goes on.
"""

import errno
import itertools
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedserver.store.reports import Arrival
from fedserver.store.store import Store
from shoal.core.engine.round.attendance import Memory
from shoal.core.errors import DiskFull, StorageFault
from shoal.core.exchange.tensors import digest
from tests.crash.lab import OWNERS, acknowledged, check, end, inject, lived
from tests.server.servers import ROUNDS
from tests.server.store.conftest import Engine
from tests.server.store.samples import RECORD, blobs_in, checkpoint, closed, model, report
from tests.waiting import HANG

ONE_FAILED = "every device that is left has failed"
STARTS = 4
"""Starts after which a folder has recovered."""
CALLS = [*(("os", name) for name in ("fsync", "rename", "link", "unlink", "open")), ("Path", "open")]
EVERY = 2
"""Every how many passages one is tried in only the store."""


def recovered(root: Path) -> None:
    """Start until the run is over, and look at what it came to.

    A device that met the error while it worked has failed, and its round was planned again under another
    number, from which other seeds follow; then the models are not compared.
    """
    assert any(lived(root) == 0 for _ in range(STARTS))
    found, confirmed = end(root), acknowledged(root)
    if not any(abandoned for _, _, abandoned in found["counted"]):
        check(root)
        return
    assert found["standing"] == "finished"
    (why,) = [abandoned for _, _, abandoned in found["counted"] if abandoned]
    assert why.startswith(ONE_FAILED)
    assert len(found["counted"]) == ROUNDS + 2
    assert len(confirmed) == len(set(confirmed))
    kept = {
        each for each in confirmed if not each.startswith("1 ")
    }  # the reports of the first are no longer stored
    assert kept <= set(found["stored"])


@pytest.mark.parametrize("passage", [3, 30, 75])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("name", ["fsync", "rename"])
def test_a_run_goes_on_after_a_call_of_either_side_failed(
    tmp_path: Path, name: str, number: int, passage: int
) -> None:
    lived(tmp_path, "", ("os", name, passage, number))
    recovered(tmp_path)


@pytest.mark.parametrize("passage", [20, 60])
def test_a_run_goes_on_after_a_file_could_not_be_opened(tmp_path: Path, passage: int) -> None:
    lived(tmp_path, "", ("Path", "open", passage, errno.EMFILE))
    recovered(tmp_path)


STRACE = [
    ("fdatasync", "EIO", 9),
    ("fsync", "EIO", 12),
    ("pwrite64", "EIO", 30),
    ("pwrite64", "ENOSPC", 30),
    ("pwrite64", "ENOSPC", 60),
]
"""Calls that SQLite makes without Python's knowledge."""


@pytest.mark.parametrize(("call", "error", "passage"), STRACE)
def test_a_run_goes_on_after_a_call_of_the_database_failed(
    tmp_path: Path, call: str, error: str, passage: int
) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed here")
    rules = ["-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={passage}"]
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-qq", "-o", str(trace), *rules, sys.executable, "-m", "tests.crash.lab"]
    result = subprocess.run([*command, str(tmp_path)], capture_output=True, timeout=HANG, check=False)
    if not trace.exists() or not trace.read_text():
        pytest.skip(f"strace cannot trace here: {result.stderr.decode()[-200:]}")
    assert "(INJECTED)" in trace.read_text()
    recovered(tmp_path)


# -- only the store, at every passage ---------------------------------------------------------------------


def steps(store: Store, confirmed: list[str]) -> None:
    """A run to the end of its first round. confirmed: gets the name of each thing once it is confirmed."""
    if not store.runs.all():
        store.runs.add(RECORD, checkpoint(store, 1.0))
        confirmed.append("run")
    if store.runs.all()[0].round == 1:
        store.runs.open_round("mnist", ("a", "b"), "training")
        for device, value in (("a", 2.0), ("b", 3.0)):
            if store.reports.get("mnist", 1, device) is None:
                store.reports.add([Arrival.of(report(store, device, value))])
                confirmed.append(device)
        store.runs.save_round("mnist", closed(1), checkpoint(store, 4.0), 0, Memory())
        confirmed.append("round")


def failing_once(action: Callable[[], None], call: tuple[str, str], passage: int, number: int) -> str:
    """What came of it when one call failed: "full", "fault", or "" where nothing noticed."""
    whose, name = call
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(OWNERS[whose], name, getattr(OWNERS[whose], name))  # so that it is put back
        inject(whose, name, passage, number)
        try:
            action()
        except DiskFull:
            return "full"
        except (StorageFault, OSError):  # the latter from what the test itself opens
            return "fault"
    return ""


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("call", CALLS, ids=".".join)
def test_the_store_holds_what_it_told_whichever_call_fails(
    tmp_path: Path, call: tuple[str, str], number: int
) -> None:
    outcomes = []
    for passage in itertools.count(1, EVERY):
        state, confirmed = tmp_path / str(passage), list[str]()
        store = Store(state)
        outcomes.append(failing_once(lambda: steps(store, confirmed), call, passage, number))  # noqa: B023
        if outcomes[-1] == "full":
            steps(store, confirmed)  # what did not fit is tried again by the same server
        store.close()
        store = Store(state)
        store.clean_up()
        assert ("run" in confirmed) <= len(store.runs.all())
        assert {device for device in confirmed if device in "ab"} <= {
            each.device for each in (store.reports.of_round("mnist", 1) if store.runs.all() else [])
        }
        steps(store, confirmed)
        assert store.clean_up() == "" or outcomes[-1]
        assert blobs_in(Engine(None), state) == {digest(model(1.0)), digest(model(4.0))}
        assert [each.device for each in store.reports.of_round("mnist", 1)] == ["a", "b"]
        assert len(store.journal.timeline.read("mnist")) == 1
        for name in blobs_in(Engine(None), state):
            assert store.blobs.damage(name) == ""
        store.close()
        if outcomes[-3:] == ["", "", ""]:
            break
    assert any(outcomes)
