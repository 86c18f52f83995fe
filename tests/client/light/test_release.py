"""A release with calibrated noise does not depend on PyTorch: neither what leaves, nor the ledger."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import fedclient.store.ledger as ledgers
import fedclient.work.settings as working
from fedclient.agent.allowance import Allowance
from fedclient.config import DataConfig, LearnerConfig, WorkConfig
from fedclient.faults import TaskFailed
from fedclient.light.runtime import LightRuntime
from fedclient.placing.asking import Asker
from fedclient.placing.placement import Placer
from fedclient.store.blobs import BlobStore
from fedclient.store.consent import Consents
from fedclient.store.ledger import Ledger
from fedclient.store.ledger_file import LEDGER, RELEASES
from fedclient.work.pipes import TaskRunner
from fedclient.work.runtime import Runtime
from shoal.core.device_kit.learner import builtin, initial_weights
from shoal.core.device_kit.tracing import export, sample_of
from shoal.core.errors import NoConsent, Refused, Unavailable
from shoal.core.exchange.link import Question
from shoal.core.exchange.messages import Describe
from shoal.core.exchange.parts import Evidence, NoisySums, PrivacySettings
from shoal.core.exchange.payload import Payload, encode
from shoal.core.exchange.wire import payload_to_bytes
from shoal.core.privacy.budget import Budget
from shoal.core.privacy.ledger.entries import Debit, Release, chosen
from shoal.core.server_kit.frozen_encoder import public_projector
from tests.client.in_process import InProcess
from tests.client.memory_server import MemoryLink, MemoryServer, quiet
from tests.waiting import HANG

pytest.importorskip("onnx", reason="the packages for exports are not installed")
pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

OPTIONS = {"inputs": 4, "hidden": (6,), "classes": 3}
SAMPLES, NOON, SEED = 300, 1.8e9, 5
Runner = Callable[[WorkConfig], TaskRunner]
RUNNERS: dict[str, Runner] = {"torch": Runtime.open, "onnx": LightRuntime}


@pytest.fixture(autouse=True)
def own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is for a process of its own, and must not stay in this one."""
    monkeypatch.setattr("fedclient.light.runtime.limit_memory", lambda most: None)


@pytest.fixture
def work(tmp_path: Path) -> WorkConfig:
    """Samples are eighths and weights quarters, so that no order of a sum changes a bit of a latent."""
    x = np.random.default_rng(SEED).integers(-16, 17, (SAMPLES, 4)) / 8
    np.savez(tmp_path / "new.npz", x=x.astype(np.float32))
    data = DataConfig(npz=tmp_path / "new.npz")
    account = tmp_path / "privacy"
    return WorkConfig(tmp_path / "blobs", account, data=data, labels=False, privacy=Budget(epsilon=5.0))


@pytest.fixture(scope="module")
def server() -> Callable[[], MemoryServer]:
    learner = builtin("mlp", OPTIONS)
    file = np.frombuffer(export(learner, sample_of((4,)), {}).data, np.uint8)
    encoder = {name: np.round(4 * value) / 4 for name, value in initial_weights(learner, SEED).items()}
    asked = Describe(encoder, public_projector(6, 5), 0, PrivacySettings("balanced", 5.0, 1e-6))

    def make() -> MemoryServer:
        made = MemoryServer([])
        kept = made.keep({"graph": file})
        made.question = Question("r1", encode(asked, made.keep), kept.blob)
        return made

    return make


class AtNoon(Ledger):
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named, clock=lambda: NOON)


def sent(server: MemoryServer, work: WorkConfig, kind: str) -> bytes:
    """What leaves a device, through the whole way of a placement."""
    learner = LearnerConfig(builtin="mlp", options=OPTIONS) if kind == "torch" else None
    executor, store = InProcess(RUNNERS[kind](replace(work, learner=learner))), BlobStore(work.blobs)
    asker = Asker(MemoryLink(server), store, quiet, Allowance(1 << 20, give_up_after=0.05), kind == "onnx")
    placer = Placer(asker, executor, quiet, kind == "onnx")
    with pytest.raises(Refused, match="no model yet"):  # the server got the description, and has no answer
        asyncio.run(placer.place())
    (descriptor,) = server.placed
    assert isinstance(descriptor.statistics, NoisySums)
    return payload_to_bytes(Payload("descriptor", {"descriptor": descriptor}))


@pytest.mark.parametrize("kind", RUNNERS)
@pytest.mark.parametrize("refused", ["before", "while the server is away"])
def test_nothing_leaves_for_a_run_that_its_owner_has_refused(
    work: WorkConfig, server: Callable[[], MemoryServer], tmp_path: Path, kind: str, refused: str
) -> None:
    learner = LearnerConfig(builtin="mlp", options=OPTIONS) if kind == "torch" else None
    own, consents = (
        replace(work, learner=learner, consent=tmp_path / "consent"),
        Consents(tmp_path / "consent"),
    )
    asked = server()

    class Away(MemoryLink):
        async def place(self, *given: Any) -> Any:
            if isinstance(given[1], Evidence) and refused != "before" and not consents.refused():
                consents.revoke("r1", unseen=True)
                raise Unavailable("no answer")
            return await super().place(*given)

    if refused == "before":
        consents.revoke("r1", unseen=True)
    executor, check = InProcess(RUNNERS[kind](own)), consents.check_not_refused
    asker = Asker(
        Away(asked),
        BlobStore(work.blobs),
        quiet,
        Allowance(1 << 20, give_up_after=HANG),
        kind == "onnx",
        check,
    )
    with pytest.raises((NoConsent, TaskFailed)) as caught:
        asyncio.run(Placer(asker, executor, quiet, kind == "onnx").place())
    assert "you have refused run r1" in caught.value.message
    assert asked.placed == []
    if refused == "before":
        assert chosen(Ledger(work.account, work.privacy).entries(), Debit) == [], "nothing was paid"


def test_the_same_noise_gives_the_same_bytes_and_the_same_ledger(
    work: WorkConfig, server: Callable[[], MemoryServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only here is the noise from a seed, and the time is fixed."""
    monkeypatch.setattr(working, "Ledger", AtNoon)
    left, lines = [], []
    for kind in RUNNERS:
        monkeypatch.setattr(ledgers, "token_bytes", Random(SEED).randbytes)
        own = replace(work, blobs=tmp_path / kind / "blobs", account=tmp_path / kind / "privacy")
        left.append(sent(server(), own, kind))
        lines.append((own.account / LEDGER).read_bytes())
        assert (own.account / RELEASES / "1").read_bytes() == left[-1]
    assert left[0] == left[1]
    assert lines[0] == lines[1]
    assert len(lines[0].splitlines()) == 2  # a debit, and its release


@pytest.mark.parametrize(("first", "second"), [("torch", "onnx"), ("onnx", "torch")])
def test_a_device_that_changes_its_runtime_sends_what_it_has_paid_for(
    work: WorkConfig, server: Callable[[], MemoryServer], first: str, second: str
) -> None:
    """The noise is that of the operating system. The budget has room for one release."""
    before = sent(server(), work, first)
    assert sent(server(), work, second) == before
    entries = Ledger(work.account, work.privacy).verify()
    assert [len(chosen(entries, kind)) for kind in (Debit, Release)] == [1, 1]
    assert chosen(entries, Debit)[0].payment.cost.epsilon(1e-6) == pytest.approx(5.0)
