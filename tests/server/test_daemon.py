"""The real process: it starts, stops when it is asked to, and goes on where it was however it ended."""

import asyncio
import signal
from pathlib import Path

import pytest
from grpc import aio

from fedserver.config import ServerConfig
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.runs import Run
from fedserver.daemon import serve as serve_until_stopped
from fedserver.rpc.client import OperatorClient
from shoal.core.errors import ConfigError, InUse, StorageFault, Unavailable
from shoal.core.exchange.link import Outcome
from tests.server.processes import daemon, restored
from tests.server.servers import DEVICES, ROUNDS, expected, spec
from tests.server.toys import MODEL, Hands, honest, same_models, serve
from tests.server.wire_link import WireLink
from tests.waiting import HANG


async def some_reports(address: str, reports: range) -> None:
    """Devices that send these reports of a run, counted from 0, and then are heard of no more."""
    async with aio.insecure_channel(address) as channel:
        devices = [await Hands(WireLink(channel, f"d{number}")).hello() for number in range(DEVICES)]
        for device in devices:
            await device.link.next_task(0.0)
        for report in reports:
            number = report % DEVICES
            receipt = await devices[number].do(await devices[number].task(), honest(number))
            assert receipt.outcome is Outcome.ACCEPTED


async def all_devices(address: str) -> None:
    async with aio.insecure_channel(address) as channel:
        devices = (serve(WireLink(channel, f"d{number}"), honest(number)) for number in range(DEVICES))
        await asyncio.gather(*devices)


def test_the_next_process_goes_on_where_one_ended_however_it_did(tmp_path: Path) -> None:
    state, sent = tmp_path / "s", 0
    for number, until in ((signal.SIGTERM, 4), (signal.SIGINT, 5), (signal.SIGKILL, 7)):
        with daemon(state) as running, OperatorClient(state) as operator:
            assert (state / "address").read_text().strip() == running.address
            if not sent:
                operator.start_run(spec(), MODEL)
            else:
                found = restored(operator, "toy").summary
                assert (found.stage, found.round) == ("open", 1 + sent // DEVICES)
                assert found.waiting_for == f"{sent % DEVICES} of 3 reports are in"
            asyncio.run(some_reports(running.address, range(sent, until)))
            code, sent = running.stop(number), until
            assert code == (-signal.SIGKILL if number is signal.SIGKILL else 0)
            with pytest.raises(Unavailable, match="no server is running"):
                operator.runs()
    with daemon(state) as last, OperatorClient(state) as operator:
        before = restored(operator, "toy").summary
        assert (before.stage, before.round, before.waiting_for) == ("open", 3, "1 of 3 reports are in")
        asyncio.run(all_devices(last.address))
        *_, status = operator.watch("toy")
        assert status.summary.stage == "finished"
        assert status.summary.round == ROUNDS + 2
        assert same_models({"global": operator.fetch(status.models["global"])}, expected())
        assert last.stop() == 0
    assert not (state / "address").exists()


def test_a_second_server_is_told_who_has_the_folder_and_a_waiting_device_that_the_first_ends(
    tmp_path: Path,
) -> None:
    async def play(address: str) -> str:
        async with aio.insecure_channel(address) as channel:
            device = await Hands(WireLink(channel, "d0")).hello()
            polling = asyncio.create_task(device.link.next_task(20.0))
            while not (await asyncio.to_thread(waiting_for)).startswith("1 of 3 devices are here"):
                assert not polling.done()
            running.process.send_signal(signal.SIGTERM)
            with pytest.raises(aio.AioRpcError) as caught:
                await polling
            return caught.value.details() or ""

    def waiting_for() -> str:
        return operator.show("toy").summary.waiting_for

    with daemon(tmp_path / "s") as running, OperatorClient(tmp_path / "s") as operator:
        operator.start_run(spec(), MODEL)
        config = ServerConfig(tmp_path / "s", "127.0.0.1:0", True)
        with pytest.raises(InUse, match=f"in use by another process .{running.process.pid}"):
            asyncio.run(serve_until_stopped(config, lambda address, join: None))
        assert "the server is stopping" in asyncio.run(play(running.address))
        assert running.process.wait(HANG) == 0


def test_a_disk_that_gives_way_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was decided could not be put on disk: only a start from the disk knows what holds."""

    async def broken(self: Run, *arguments: object) -> None:
        raise StorageFault("shoal.db: disk I/O error")

    def start(address: str, join: str) -> None:
        monkeypatch.setattr(Run, "_open", broken)

        async def devices() -> None:
            async with aio.insecure_channel(address) as channel:
                with pytest.raises(aio.AioRpcError):
                    await serve(WireLink(channel, "d0"), honest(0))

        def ask() -> None:
            from shoal.core.engine.rounds import RoundPolicy

            with OperatorClient(tmp_path) as operator:
                operator.start_run(spec(policy=RoundPolicy(devices=1, minimum=1)), MODEL)

        async def play() -> None:
            await asyncio.to_thread(ask)
            await devices()

        playing.append(asyncio.ensure_future(play()))

    playing: list[asyncio.Future[None]] = []

    async def story() -> None:
        await serve_until_stopped(ServerConfig(tmp_path, "127.0.0.1:0", True), start)

    with pytest.raises(StorageFault, match="disk I/O error"):
        asyncio.run(story())
    assert not (tmp_path / "address").exists()

    async def again() -> None:
        monkeypatch.undo()
        coordinator = await Coordinator.open(tmp_path, ServerConfig(tmp_path, insecure_loopback=True).cadence)
        assert coordinator.runs["toy"].active
        await coordinator.close()

    asyncio.run(again())


def test_without_certificates_and_the_flag_nothing_is_served(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot prove who they are") as raised:
        asyncio.run(serve_until_stopped(ServerConfig(tmp_path / "s"), lambda address, join: None))
    assert "fedserver init" in raised.value.hint
    assert not (tmp_path / "s").exists()
