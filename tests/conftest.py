"""What holds for every test: one thread of arithmetic, fast files, and the long modules first."""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import buckets, postgresql
from tests.waiting import HANG

# Sums over several threads differ in their last bits, and every worker has its own core already. It is set
# before anything imports NumPy or PyTorch, and every process that a test starts inherits it.
os.environ["OMP_NUM_THREADS"] = "1"

# An example has no time limit: on a busy machine any takes longer than the usual 200 ms. They are fewer than
# the usual 100, and others each time; `make fuzz` tries many more of hostile bytes.
settings.register_profile(
    "busy", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy")

MEMORY, ENOUGH = Path("/dev/shm"), 4 << 30


def _in_memory() -> bool:
    """Whether the tests' folders fit into memory. There fsync costs nothing, and a test that kills a process
    proves the same: what survives the process is in the page cache on any file system."""
    if not (MEMORY.is_dir() and os.access(MEMORY, os.W_OK)):
        return False
    found = os.statvfs(MEMORY)
    return found.f_bavail * found.f_frsize > ENOUGH and not found.f_flag & os.ST_NOEXEC


if "PYTEST_DEBUG_TEMPROOT" not in os.environ and _in_memory():
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(MEMORY)

LONGEST = (
    "checks/test_liars.py",
    "compat/test_versions.py",
    "e2e/test_conformance.py",
    "e2e/test_bad_lines.py",
    "checks/test_every_algorithm.py",
    "histories/test_histories.py",
    "e2e/test_mixed_languages.py",
    "e2e/test_readme.py",
    "api/test_notebooks.py",
    "audit/test_audit.py",
    "e2e/test_plugin.py",
    "e2e/test_guide.py",
    "chaos/test_chaos_short.py",
    "packaging/test_wheel.py",
    "e2e/test_example_clinics.py",
    "e2e/test_reconnect.py",
    "e2e/test_identity.py",
    "e2e/test_rollout.py",
    "e2e/test_three_drivers.py",
    "crash/test_faults.py",
    "crash/test_takeover.py",
    "crash/test_ledger.py",
    "core/server_kit/test_attacks_on_digits.py",
    "core/privacy/secure/test_lists.py",
    "lab/test_experiment.py",
    "lab/test_influence.py",
    "paper/test_fedrc.py",
    "server/store/test_stops.py",
    "server/page/test_browser.py",
    "e2e/test_status_over_restarts.py",
    "client/work/test_worker.py",
)
"""Modules that take longest, the longest first: none of them is left for one worker at the end."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """A test before may have asked PyTorch for another number of threads."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        path = item.path.as_posix()
        return next((n for n, each in enumerate(LONGEST) if path.endswith(f"tests/{each}")), len(LONGEST))

    items.sort(key=place)  # a stable sort: the order within a module stays


def pytest_collection_finish() -> None:
    """What is loaded now stays until the end, so the garbage collector need not look at it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", name="postgresql")
def a_postgresql() -> Iterator[postgresql.Cluster]:
    """A PostgreSQL server for this worker's tests.

    It does not take this process for one that was stopped, as it would on a busy machine.
    """
    if reason := postgresql.lacking():
        pytest.skip(reason)
    with postgresql.cluster() as running, pytest.MonkeyPatch.context() as patient:
        patient.setattr("fedserver.ha.postgresql.SILENCE", HANG)
        yield running


@pytest.fixture(scope="session", name="buckets")
def some_buckets() -> Iterator[buckets.Buckets]:
    """A server of the S3 API for this worker's tests."""
    if reason := buckets.lacking():
        pytest.skip(reason)
    with buckets.buckets() as running:
        yield running


@pytest.fixture
def programs() -> Iterator[Path]:
    """A folder for the PATH with our programs, which are forked."""
    from tests.typed import commands

    with commands() as found:
        yield found


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes in which devices work are forked from one that has loaded PyTorch."""
    from fedclient.work import spawning
    from tests.programs import forking

    monkeypatch.setattr(spawning, "spawn", forking(spawning.spawn))
