"""A server that asks a device for the same exchange of a sum again, to get a second answer under one mask."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shoal.core.data.dataset import Dataset
from shoal.core.exchange.link import Failure, Task
from shoal.core.exchange.messages import Message
from shoal.core.exchange.parts import Letters
from shoal.core.exchange.payload import Payload, encode
from shoal.core.exchange.summing import (
    Announce,
    Share,
    TrainMasked,
    Unmask,
)
from shoal.core.exchange.wire import payload_to_bytes, work_key
from shoal.core.privacy.budget import Budget
from shoal.core.privacy.ledger.entries import Summed, chosen
from shoal.core.privacy.secure import member as members
from shoal.core.privacy.secure.cohort import MIN_COHORT, Manifest, Unsigned
from tests.audit.test_adversary import SETTINGS, Device, models

SESSION, ME = "round 1, attempt 1", "d0"


@pytest.fixture
def data() -> Dataset:
    x = np.random.default_rng(7).uniform(1.0, 2.0, size=(90, 6)).astype(np.float32)
    return Dataset(x, np.arange(90) % 3)


def ask(device: Device, message: Message, number: int) -> Payload | Failure:
    """The same number and message are the same work, as when a server leases it again after the receipt."""
    task = Task("sums", number, 1, 0, "", encode(message, device.store.keep))
    result = device.runtime.perform(task)
    if isinstance(result, Payload):
        device.memory.settle(work_key(task))
    return result


def sent(result: Payload | Failure) -> bytes:
    assert isinstance(result, Payload), result
    return payload_to_bytes(result)


def exchanges(device: Device) -> Iterator[tuple[int, Message]]:
    """What the server asks after the keys were announced. It plays the rest of the cohort."""
    others = {f"d{number}": members.announced(SESSION, Unsigned()) for number in range(1, MIN_COHORT)}
    announced = ask(device, Announce(SESSION), 1)
    assert isinstance(announced, Payload)
    keys = announced.parts["keys"]
    whole = {ME: keys.by_device[""], **{name: each for name, (each, _) in others.items()}}  # type: ignore[arg-type]
    yield 2, Share(SESSION, Letters(whole))
    letters = {
        name: members.shared(member, Manifest(SESSION, whole), Unsigned())[0][ME]
        for name, (_, member) in others.items()
    }
    model = models()["usual"]
    yield (
        3,
        TrainMasked(model, SETTINGS, session=SESSION, letters=Letters(letters), clip=1.0, noise=1.0),
    )
    yield 4, Unmask(SESSION, Letters(dict.fromkeys(sorted(whole), b"")))


def test_each_exchange_has_one_answer_however_often_it_is_asked(tmp_path: Path, data: Dataset) -> None:
    """Letters are sealed with one key for each pair of devices, which must not seal two different ones."""
    device = Device(tmp_path, data, Budget())
    for number, message in exchanges(device):
        first = sent(ask(device, message, number))
        assert sent(ask(device, message, number)) == first, message.kind
    assert len(chosen(device.ledger.verify(), Summed)) == 1


def test_no_second_update_leaves_under_the_mask_of_another(tmp_path: Path, data: Dataset) -> None:
    """The difference of two updates under one mask is that of the updates. So where the data have changed
    since the update left, the device has no part in this sum any more."""
    device = Device(tmp_path, data, Budget())
    changed = Dataset(np.concatenate([data.x[:-1], data.x[-1:] + 3.0]), data.y)
    for number, message in exchanges(device):
        first = sent(ask(device, message, number))
        if isinstance(message, TrainMasked):
            again = ask(Device(tmp_path, changed, Budget()), message, number)
            assert isinstance(again, Failure), "another update left under the same mask"
            assert again.code == "device-fault"
            assert sent(ask(device, message, number)) == first
    (line,) = chosen(device.ledger.verify(), Summed)
    assert line.update.data == device.runtime._context.version()
