"""A device that watches its data: what it compares, what it pays for, and what waits to be said."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedclient.agent.allowance import Allowance
from fedclient.config import ClientConfig, DataConfig, PrivacyConfig, WorkConfig
from fedclient.light.messages import Open
from fedclient.light.runtime import LightRuntime
from fedclient.placing.asking import Asker
from fedclient.placing.placement import PlacementResult, Tried
from fedclient.placing.watching import ANSWER_SECONDS, COMPARE_SECONDS, Watcher
from fedclient.store.blobs import BlobStore
from fedclient.store.findings import FOLDER, STATE, Findings
from fedclient.store.ledger import Ledger
from fedclient.store.privacy_report import ledger_of
from fedclient.work.runtime import Runtime
from fedclient.work.settings import work_config
from shoal.core.device_kit.learner import initial_weights
from shoal.core.errors import BadPayload
from shoal.core.exchange.choosing import Wish
from shoal.core.exchange.choosing.watching import Moved, Watch
from shoal.core.exchange.link import Failure, Question, Task
from shoal.core.exchange.parts import ClusterAssignment
from shoal.core.exchange.payload import Payload, Weights, encode
from shoal.core.inference.drift import LEVEL
from shoal.core.inference.watching import KNOWN
from shoal.core.privacy.ledger.entries import paid
from shoal.core.privacy.payment import WATCH
from shoal.core.types import Array
from tests.client.in_process import InProcess
from tests.client.memory_server import MemoryLink, MemoryServer, quiet
from tests.core.inference.graphs import graph

pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

MODEL = {
    "weight": np.random.default_rng(5).normal(size=(4, 3)).astype(np.float32),
    "bias": np.ones(3, np.float32),
}
USUAL, MORE, OTHER = (
    np.random.default_rng(seed).normal(mean, 1.0, (60, 4)).astype(np.float32)
    for seed, mean in ((1, 0.0), (2, 0.0), (3, 2.0))
)


@pytest.fixture(autouse=True)
def own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is for a process of its own, and must not stay in this one."""
    monkeypatch.setattr("fedclient.light.runtime.limit_memory", lambda most: None)


class Device:
    """In a folder, with a clock that is set by hand."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.now, self.file = time.time() - ANSWER_SECONDS - 9.0 * COMPARE_SECONDS, folder / "new.npz"
        self.settings = ClientConfig(
            state=folder / "state",
            device="d0",
            data=DataConfig(npz=self.file),
            **settings,  # type: ignore[arg-type]
        )
        self.store = BlobStore(self.settings.state / "blobs")
        self.watcher = Watcher(self.settings, lambda: self.now)
        model = self.store.keep(MODEL)
        self.placed = PlacementResult("r1", ClusterAssignment("c0"), model, release="r1@10", of_cluster=model)

    def look(
        self, x: Array, later: float = COMPARE_SECONDS, placed: PlacementResult | None = None
    ) -> Findings:
        self.now += later
        np.savez(self.file, x=x)
        light = LightRuntime(work_config(self.settings, labels=False))
        opened = Open({"graph": np.frombuffer(graph(), np.uint8)})
        light.perform(Task("local", 1, 0, 0, "open", encode(opened, self.store.keep)))
        asyncio.run(self.watcher.look(placed or self.placed, InProcess(light), self.store))
        return self.watcher.findings

    def answer(self, placed: PlacementResult | None = None) -> Findings:
        """It looks when it is time for an answer, at the time by which the ledger goes."""
        self.now = time.time()
        return self.look(OTHER, 0.0, placed)

    def answers(self) -> int:
        return len(paid(ledger_of(self.settings).verify(), WATCH))


def test_new_samples_are_compared_with_those_that_came_with_the_model(tmp_path: Path) -> None:
    device = Device(tmp_path)
    taken = device.look(USUAL)
    assert (taken.subject, taken.cluster, taken.taken, taken.fresh) == ("r1@10", "c0", device.now, 0)
    same = device.look(np.concatenate([USUAL, MORE]))
    assert (same.fresh, same.since) == (60, 0.0)
    assert same.chance > LEVEL
    moved = device.look(np.concatenate([USUAL, OTHER]))
    assert (moved.fresh, moved.since) == (60, device.now)
    assert moved.chance <= LEVEL
    assert device.look(OTHER).since == moved.since
    assert (
        device.look(MORE, later=COMPARE_SECONDS / 2)
        == device.watcher.findings
        != device.look(MORE, later=COMPARE_SECONDS)
    )
    newer = device.look(OTHER, placed=replace(device.placed, release="r1@20"))
    assert (newer.since, newer.taken) == (0.0, device.now), "a newer model was made for the present data"


def test_one_answer_is_paid_for_and_waits_until_it_is_said(tmp_path: Path) -> None:
    device = Device(tmp_path)
    taken = device.look(USUAL)
    assert device.now <= taken.due <= device.now + ANSWER_SECONDS
    assert device.look(OTHER, later=taken.due - device.now - 1.0).waiting is None
    found = device.answer()
    assert found.waiting is not None
    assert (found.waiting.subject, found.waiting.cluster) == ("r1@10", "c0")
    assert device.answers() == 1
    device.watcher.sent(Moved("r1@5", "c0", True))
    assert device.watcher.findings.waiting == found.waiting, "another one was said"
    device.watcher.sent(found.waiting)
    assert device.look(OTHER, later=ANSWER_SECONDS - 60.0).waiting is None
    assert device.look(OTHER, later=COMPARE_SECONDS).waiting is not None
    assert device.answers() == 2


def test_a_lost_folder_gives_no_answer_before_it_is_due(tmp_path: Path) -> None:
    device = Device(tmp_path)
    device.look(USUAL)
    device.answer()
    for path in (device.settings.state / FOLDER).iterdir():
        path.write_bytes(b"rotten")
    assert device.watcher.findings == Findings()
    device.look(USUAL)
    assert device.look(OTHER, later=ANSWER_SECONDS - 3.0 * COMPARE_SECONDS).waiting is None
    assert device.answers() == 1


def test_who_has_chosen_by_itself_does_not_name_its_cluster(tmp_path: Path) -> None:
    device = Device(tmp_path)
    own = replace(device.placed, tried=(Tried("c0", 1.0, 0.0, 1.0, 1.0),))
    device.look(USUAL, placed=own)
    found = device.answer(own)
    assert found.waiting is not None
    assert found.waiting.cluster == ""


def test_without_a_budget_nothing_leaves_and_the_owner_still_sees_it(tmp_path: Path) -> None:
    device = Device(tmp_path, privacy=PrivacyConfig(epsilon=0.5))
    device.look(USUAL)
    found = device.answer()
    assert (found.waiting, device.answers()) == (None, 0)
    assert found.since == device.now
    assert "over this device's budget" in found.trouble


def of_a_later_zip(data: bytes) -> bytes:
    """The same file with one bit of its list of contents flipped."""
    place = data.index(b"PK\x01\x02") + 6  # the version that it takes to read it
    return data[:place] + bytes([data[place] ^ 0x40]) + data[place + 1 :]


@pytest.mark.parametrize("rotten", [lambda data: b"PK\x03\x04 rotten", of_a_later_zip])
def test_a_damaged_reference_is_taken_anew(tmp_path: Path, rotten: Callable[[bytes], bytes]) -> None:
    device = Device(tmp_path)
    name = device.look(USUAL).reference
    path = device.settings.state / FOLDER / name
    path.write_bytes(rotten(path.read_bytes()))
    again = device.look(OTHER)
    assert (again.reference != name, again.since, again.taken) == (True, 0.0, device.now)
    assert {each.name for each in (device.settings.state / FOLDER).iterdir()} == {STATE, again.reference}


def test_latents_of_another_width_than_those_that_were_kept_are_not_compared(tmp_path: Path) -> None:
    """The owner has changed what is latent in the learner."""
    device = Device(tmp_path)
    path = device.settings.state / FOLDER / device.look(USUAL).reference
    with np.load(path) as known:
        kept = dict(known)
    kept["latents"] = np.zeros((len(kept["said"]), 7), np.float32)
    np.savez(path, **kept)  # type: ignore[arg-type]
    found = device.look(OTHER)
    assert (found.trouble, found.fresh) == ("", len(OTHER))
    assert found.chance <= LEVEL, "what is said of classes is still compared"


def test_only_a_device_itself_asks_and_a_learner_can_answer(work: WorkConfig, store: BlobStore) -> None:
    trainer = Runtime.open(work)
    model = initial_weights(trainer._context.learner, 5)
    task = Task("r1", 1, 1, 7, "", encode(Watch(model), store.keep))
    refused = trainer.perform(task)
    assert isinstance(refused, Failure), "not as a task of a run"
    answer = Runtime.open(replace(work, newcomer=True)).perform(task)
    assert isinstance(answer, Payload)
    reference = answer.parts["reference"]
    assert isinstance(reference, Weights)
    assert {"said", "latents", KNOWN} == set(store.load(reference))
    server = MemoryServer([])
    server.question = Question("r1", encode(Watch(model), server.keep))
    asker = Asker(MemoryLink(server), store, quiet, Allowance(1 << 20, give_up_after=0.05))
    with pytest.raises(BadPayload, match="asks whether this device's data have moved"):
        asyncio.run(asker.ask("", Wish(1), False))
    assert paid(Ledger(work.account, work.privacy).entries(), WATCH) == []
