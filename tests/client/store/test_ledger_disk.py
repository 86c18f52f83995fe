"""A disk that is full at any moment costs a device that tries again no second debit."""

import errno
import os
import stat
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from fedclient.store.blobs import BlobStore
from fedclient.store.ledger import Ledger
from fedclient.work.runtime import Runtime
from shoal.checks.small_fleet import digits, first_model, learner
from shoal.core.algorithm import find
from shoal.core.algorithm.asks import terms_of
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.errors import DiskFull
from shoal.core.exchange.link import Failure, Task
from shoal.core.exchange.messages import PrivateTraining, Train, TrainingSettings
from shoal.core.exchange.payload import Payload, encode
from shoal.core.exchange.tensors import digest
from shoal.core.privacy.budget import Budget
from shoal.core.privacy.ledger.entries import Release, chosen, paid
from shoal.core.privacy.payment import TRAINING
from shoal.simulation.images import unit
from tests.client.store import paying
from tests.client.store.paying import ONE_COUNT, ONE_VOTE, exact, order, sent

# To import it here would load it for every worker of the tests.
pytestmark = pytest.mark.skipif(find_spec("opacus") is None, reason="Opacus is not installed")

FULL = OSError(errno.ENOSPC, "No space left on device")
Ask = Callable[[Ledger], object]


class FullDisk:
    """A disk on which `room` more files fit, and which says so as late as it may: when they are synced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room, self._fsync = 1 << 30, os.fsync
        self.setting_aside = True
        allocate = os.posix_fallocate

        def synced(descriptor: int) -> None:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                if self.room == 0:
                    raise FULL
                self.room -= 1
            self._fsync(descriptor)

        def allocated(descriptor: int, start: int, size: int) -> None:
            if not self.setting_aside:
                raise FULL
            allocate(descriptor, start, size)

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "posix_fallocate", allocated)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    return FullDisk(monkeypatch)


def released(ledger: Ledger) -> object:
    return sent(paying.released(ledger, order(), exact))


def counted(ledger: Ledger) -> object:
    return paying.counted(ledger, ONE_COUNT, lambda: 100)


def voted(ledger: Ledger) -> object:
    return paying.voted(ledger, ONE_VOTE, lambda: np.array([0, -1, -2]))


@pytest.mark.parametrize("ask", [released, counted, voted])
def test_a_number_that_does_not_fit_on_the_disk_is_paid_once(
    tmp_path: Path, disk: FullDisk, ask: Ask
) -> None:
    fitting = 0
    while True:
        ledger = Ledger(tmp_path / str(fitting), Budget()).of("r1")
        disk.room = fitting
        try:
            ask(ledger)
            break
        except DiskFull:
            before = len(paid(ledger.entries()))
        for _ in range(3):
            with pytest.raises(DiskFull):
                ask(ledger)
        assert len(paid(ledger.entries())) == before
        disk.room = 1 << 30
        found = ask(ledger.of("r2"))
        entries = ledger.verify()
        assert len(paid(entries)) == len(chosen(entries, Release)) == 1
        assert ask(Ledger(tmp_path / str(fitting), Budget())) == found
        fitting += 1
    assert fitting == 6, "a head, the line and its head, what was released, and again a line and its head"


@pytest.mark.parametrize("ask", [released, counted, voted])
def test_nothing_is_paid_where_there_is_no_room(tmp_path: Path, disk: FullDisk, ask: Ask) -> None:
    ledger = Ledger(tmp_path, Budget())
    disk.setting_aside = False
    with pytest.raises(DiskFull):
        ask(ledger)
    assert ledger.verify() == []
    disk.setting_aside = True
    ask(ledger)


def test_what_was_not_stored_is_not_noted_in_another_ledger(tmp_path: Path, disk: FullDisk) -> None:
    """Its owner restored the folder from a backup meanwhile."""
    ledger = Ledger(tmp_path, Budget())
    disk.room = 3
    with pytest.raises(DiskFull):
        paying.counted(ledger, ONE_COUNT, lambda: 100)
    disk.room = 1 << 30
    for path in [each for each in tmp_path.rglob("*") if each.is_file()]:
        path.unlink()
    paying.voted(Ledger(tmp_path, Budget()), ONE_VOTE, lambda: np.array([0, -1, -2]))
    before = ledger.verify()
    paying.voted(ledger, ONE_VOTE, lambda: np.array([0, -1, -2]))
    assert ledger.verify() == before


class Trainer:
    """A runtime that trains with DP-SGD, on a folder of its own."""

    def __init__(self, root: Path) -> None:
        samples = digits()[0]
        views = Views.of(Dataset(unit(samples.x[:100]), samples.y[:100]), None)
        self.ledger, self.store = Ledger(root / "privacy", Budget()), BlobStore(root / "blobs")
        chance = np.random.default_rng(0)
        context = DeviceContext(learner(), views, "cpu", 0, chance, account=self.ledger)
        self.runtime = Runtime(context, self.store)

    def task(self, round: int = 1, terms: str = "") -> Task:
        private = PrivateTraining(noise=2.0)
        message = Train(first_model(), TrainingSettings(epochs=1, batch_size=50), "c0", private=private)
        return Task("r1", round, 1, 7, "", encode(message, self.store.keep), terms)

    def weights(self, result: Payload | Failure) -> str:
        assert isinstance(result, Payload), result
        (found,) = result.weights()
        return digest(self.store.load(found))

    def lines(self) -> tuple[int, list[str]]:
        entries = self.ledger.verify()
        return len(paid(entries, TRAINING)), [each.release for each in chosen(entries, Release)]


def test_training_that_does_not_fit_on_the_disk_is_paid_once(tmp_path: Path, disk: FullDisk) -> None:
    fitting = 0
    while True:
        device = Trainer(tmp_path / str(fitting))
        task = device.task()
        disk.room = fitting
        results = [device.runtime.perform(task) for _ in range(3)]
        disk.room = 1 << 30
        if not isinstance(results[0], Failure):
            break
        assert [each.code for each in results if isinstance(each, Failure)] == ["disk-full"] * 3
        lines = device.lines()[0]
        left = device.weights(device.runtime.perform(task))
        assert device.lines() == (1, [left]), "what leaves is what the ledger names"
        assert lines == (fitting >= 3), "the line and its head after the first head, or nothing"
        fitting += 1
    assert fitting == 6


def test_training_in_a_series_is_paid_once_where_the_disk_is_full_after_it(
    tmp_path: Path, disk: FullDisk
) -> None:
    card, _ = find("fedavg")
    terms = terms_of(card, card.configure("default", {"rounds": 1}), series="daily")
    fitting = 0
    while True:
        device = Trainer(tmp_path / str(fitting))
        task = device.task(terms=terms)
        disk.room = fitting
        results = [device.runtime.perform(task) for _ in range(3)]
        disk.room = 1 << 30
        if not isinstance(results[0], Failure):
            break
        left = device.weights(device.runtime.perform(task))
        assert device.lines() == (1, [left])
        fitting += 1
    assert (tmp_path / str(fitting) / "trained.json").exists()


def test_a_model_that_was_not_stored_answers_no_other_task(tmp_path: Path, disk: FullDisk) -> None:
    device = Trainer(tmp_path)
    tasks = [device.task(1), device.task(2)]
    disk.room = 5
    assert isinstance(device.runtime.perform(tasks[0]), Failure)
    disk.room = 1 << 30
    left = device.weights(device.runtime.perform(tasks[1]))
    debits, releases = device.lines()
    assert debits == 2
    assert releases[1] == left != releases[0]


def test_no_training_is_paid_where_its_model_has_no_room(tmp_path: Path, disk: FullDisk) -> None:
    device = Trainer(tmp_path)
    disk.setting_aside = False
    result = device.runtime.perform(device.task())
    assert isinstance(result, Failure)
    assert result.code == "disk-full"
    assert device.ledger.verify() == []
    disk.setting_aside = True
    device.weights(device.runtime.perform(device.task()))
