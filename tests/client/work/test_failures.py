"""What of a failure leaves the device: a code and a fixed text, and a line in the ledger before it."""

import ast
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedclient
from fedclient.store.blobs import BlobStore
from fedclient.store.ledger import Ledger
from fedclient.work.failures import OTHER, TEXTS, outgoing
from fedclient.work.runtime import Runtime
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import authors
from shoal.core.engine.round.waiting import reasons
from shoal.core.errors import DiskFull, LedgerFault, OtherShape
from shoal.core.exchange.link import Failure, Task
from shoal.core.exchange.messages import Train, TrainingSettings
from shoal.core.exchange.payload import encode
from shoal.core.privacy.budget import Budget
from shoal.core.privacy.ledger.entries import Failed
from shoal.core.types import Tensors
from shoal.shell.disk import lock
from tests.client.memory_server import MemoryServer
from tests.client.visits import Device
from tests.slope import at, coin

RECORD = "30.7130"


@pytest.mark.parametrize("code", [*TEXTS, "x is 30.7130", "", "a-code-of-the-author"])
def test_only_a_known_code_and_its_text_leave(code: str) -> None:
    found = outgoing(Failure(code, f"tensor([[{RECORD}]])", f"Traceback: {RECORD}"))
    assert found == Failure(code if code in TEXTS else OTHER, TEXTS.get(code, TEXTS[OTHER]))
    assert RECORD not in f"{found.code}{found.message}"


def test_of_a_network_that_does_not_fit_the_shapes_leave() -> None:
    error = OtherShape("0.weight", (8, 5), (8, 4))
    left = outgoing(Failure(error.code, str(error), RECORD))
    assert left == Failure("other-shape", f"{TEXTS['other-shape']}: [8, 5] in the run, and [8, 4] here")


@pytest.mark.parametrize("text", TEXTS.values())
def test_operators_read_the_whole_text_of_why_a_round_has_no_result(text: str) -> None:
    assert text in reasons({"d0": f"it failed: {text}"})


def test_every_code_that_the_client_makes_has_a_text() -> None:
    codes = set()
    for path in Path(fedclient.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Failure":
                codes |= {each.value for each in node.args[:1] if isinstance(each, ast.Constant)}
    assert codes == {"out-of-memory", "bug"}
    assert codes <= set(TEXTS)


def test_the_owner_sees_all_of_it_and_the_server_learns_the_code(
    device: Device, server: MemoryServer, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path / "privacy", Budget())
    learned: list[int] = []

    def note(run: str, code: str) -> None:
        learned.append(len(server.reports))
        ledger.failed(run, code)

    trace = f"Traceback: ValueError: got tensor([[{RECORD}]])"
    device.executor.before = [lambda: Failure("learner-failed", f"loss of {RECORD}", trace)]
    device.note_failure = note
    device.run()
    assert server.reports[0].result == Failure("learner-failed", TEXTS["learner-failed"])
    assert learned == [0]  # before the report was sent
    assert [(each.run, each.code) for each in ledger.verify() if isinstance(each, Failed)] == [
        ("r1", "learner-failed")
    ]
    assert any(RECORD in line for line in device.said)
    assert device.reporter.status.error["details"] == trace


def test_a_damaged_ledger_is_told_and_a_full_disk_is_waited_for(device: Device, server: MemoryServer) -> None:
    noted: list[str] = []

    def note(run: str, code: str) -> None:
        noted.append(code)
        if code == "bad-ledger":
            raise LedgerFault("line 1 of the ledger was changed")
        if len(noted) == 1:
            raise DiskFull("no room for the line")

    device.executor.before = [lambda: Failure("bug", "x"), lambda: Failure("bad-ledger", "line 1")]
    device.note_failure = note
    device.run()
    assert noted == ["bug", "bug", "bad-ledger"]
    assert [each.result for each in server.reports[:2]] == [
        Failure("bug", TEXTS["bug"]),
        Failure("bad-ledger", TEXTS["bad-ledger"]),
    ]


def test_a_ledger_that_another_process_holds_is_waited_for(
    device: Device, server: MemoryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent would end otherwise, as by wrong settings, after which systemd does not start it again."""
    monkeypatch.setattr("fedclient.store.ledger_file.WAIT", 0.0)
    ledger, folder = Ledger(tmp_path / "privacy", Budget()), tmp_path / "privacy"
    folder.mkdir()
    tries = 0

    def note(run: str, code: str) -> None:
        nonlocal tries
        tries += 1
        with lock(folder / "lock") if tries == 1 else nullcontext():
            ledger.failed(run, code)

    device.executor.before = [lambda: Failure("bug", "x")]
    device.note_failure = note
    device.run()
    assert tries == 2
    assert [each.code for each in ledger.verify() if isinstance(each, Failed)] == ["bug"]


@pytest.mark.parametrize("inside", [True, False])
def test_a_full_gpu_is_no_fault_of_the_author(inside: bool, tmp_path: Path) -> None:
    """Inside of the author's code, and outside, as where weights are loaded."""

    class Full(DeviceContext):
        def load(self, model: Tensors) -> nn.Module:
            with authors("training") if inside else nullcontext():
                raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    views = Views.of(Dataset(np.zeros((9, 1), np.float32), np.zeros(9, np.int64)))
    store = BlobStore(tmp_path)
    runtime = Runtime(Full(coin(), views, "cpu", 0, np.random.default_rng(0)), store)
    train = Train(at(1.0), TrainingSettings(epochs=1, batch_size=3, learning_rate=0.3, momentum=0.0))
    failure = runtime.perform(Task("r1", 1, 1, 7, "", encode(train, store.keep)))
    assert isinstance(failure, Failure)
    assert failure.code == "out-of-memory"
    assert "the GPU has too little memory for" in failure.message
    assert "set a smaller batch_size" in failure.message
    assert outgoing(failure).message == TEXTS["out-of-memory"]
