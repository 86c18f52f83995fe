"""Real processes over gRPC: one is killed at a named point and started again, the others never notice."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from fedserver.rpc.client import OperatorClient
from shoal.core.types import ModelKey, Tensors
from shoal.shell.crash import VARIABLE
from tests.crash import lab
from tests.programs import Running, started
from tests.server.processes import daemon
from tests.server.servers import DEVICES, ROUNDS, expected, spec
from tests.server.test_daemon import all_devices
from tests.server.toys import MODEL, same_models
from tests.waiting import HANG


@contextmanager
def device(address: str, root: Path, number: int, point: str = "") -> Iterator[Running]:
    line = ["tests.crash.device", address, str(root / f"d{number}"), str(number)]
    with (root / f"d{number}.log").open("a") as log:
        process = started(line, os.getcwd(), {**os.environ, VARIABLE: point}, log, log)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def check(operator: OperatorClient, due: dict[ModelKey, Tensors]) -> None:
    *_, status = operator.watch("toy")
    assert status.summary.stage == "finished"
    assert status.summary.round == ROUNDS + 2
    assert not status.abandoned
    assert same_models({"global": operator.fetch(status.models["global"])}, due)


@pytest.mark.parametrize(
    "point",
    [
        "device.chunk-fetched:2",
        "device.performed",
        "device.chunk-sent:2",
        "device.uploaded",
        "device.receipt-came:2",
    ],
)
def test_a_device_that_is_killed_alone_goes_on_in_the_same_round(tmp_path: Path, point: str) -> None:
    with daemon(tmp_path / "s") as server, OperatorClient(tmp_path / "s") as operator, ExitStack() as stack:
        operator.start_run(spec(), MODEL)
        for number in range(1, DEVICES):
            stack.enter_context(device(server.address, tmp_path, number))
        with device(server.address, tmp_path, 0, point) as first:
            assert first.wait(HANG) == -signal.SIGKILL
        with device(server.address, tmp_path, 0) as second:
            check(operator, lab.expected())
            assert second.wait(HANG) == 0
        assert server.stop() == 0


@pytest.mark.parametrize("point", ["server.chunk-written:8", "server.report-stored:5", "server.round-saved"])
def test_a_server_that_is_killed_alone_goes_on_in_the_same_round(
    tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setenv(VARIABLE, point)
        with daemon(tmp_path / "s") as first, OperatorClient(tmp_path / "s") as operator:
            operator.start_run(spec(), MODEL)
            with pytest.raises(Exception, match=r"UNAVAILABLE|Socket closed|reset|FD"):
                asyncio.run(all_devices(first.address))
            assert first.process.wait(HANG) == -signal.SIGKILL
    with daemon(tmp_path / "s") as second, OperatorClient(tmp_path / "s") as operator:
        asyncio.run(all_devices(second.address))
        check(operator, expected())
        assert second.stop() == 0
