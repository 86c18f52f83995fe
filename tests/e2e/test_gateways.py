"""Two gateways as real processes between devices and a real server. One is killed in the middle of a run."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from grpc import aio

from fedclient.agent.agent import Agent, Until
from fedclient.agent.reporter import Reporter
from fedclient.identity import join
from fedclient.identity.keyring import Keyring
from fedclient.identity.link import SecureLink
from fedclient.store.blobs import BlobStore
from fedclient.store.state import DeviceFolder, Outbox, Status
from fedserver.authority import setup
from fedserver.rpc.client import AuthorityClient
from fedserver.store.identities.records import Terms
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.exchange.link import Task
from shoal.core.exchange.payload import Payload
from shoal.core.identity.join import parse
from shoal.shell.console import Console
from tests.client.visits import NoJitter
from tests.crash.lab import Toy, expected
from tests.server.processes import daemon
from tests.server.servers import DEVICES, spec
from tests.server.toys import MODEL, same_models
from tests.waiting import free_port

HOST = "127.0.0.1"


@contextmanager
def gateway(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """`fedserver gateway up`, once it listens."""
    command = [sys.executable, "-m", "fedserver", "gateway", "up", "--folder", str(folder)]
    with folder.with_suffix(".log").open("a") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("listening on ")
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def make(state: Path, folder: Path, port: int) -> Path:
    """The folder of a gateway, as an operator makes it."""
    add = ["gateway", "add", folder.name, "--host", HOST, "--folder", folder, "--listen", f"{HOST}:{port}"]
    command = [sys.executable, "-m", "fedserver", *map(str, add), "--state", str(state)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


class Noting(SecureLink):
    """called: the addresses at which this device called."""

    called: set[str]

    def _dial(self) -> aio.Channel:
        self.__dict__.setdefault("called", set()).add(self.address)
        return super()._dial()


class Killing(Toy):
    """Calls `kill` before the answer of the second round."""

    def __init__(self, number: int, store: BlobStore, kill: Callable[[], None]) -> None:
        super().__init__(number, store)
        self._kill = kill

    async def perform(self, task: Task) -> Payload:
        if task.round == 2:
            self._kill()
        return await super().perform(task)


async def visit(root: Path, number: int, kill: Callable[[str], None]) -> set[str]:
    """Be a device until no run is left. Returns the addresses at which it called."""
    folder = DeviceFolder(root)
    identity = Keyring(folder.identity).identity()
    assert identity is not None
    link, store = Noting(Keyring(folder.identity), identity, lambda text: None), BlobStore(folder.blobs)
    reporter = Reporter(Status(root.name, "here"), root, lambda text: None, lambda text: None)
    toy = Killing(number, store, lambda: kill(link.address) if number == 0 else None)
    try:
        agent = Agent(link, toy, store, Outbox(folder.outbox), folder.mark, reporter, chance=NoJitter())
        await agent.run(Until.FINISHED)
    finally:
        await link.close()
    return link.called


def test_a_gateway_is_killed_in_a_round_and_nothing_is_lost(tmp_path: Path) -> None:
    state, ports = tmp_path / "server", {name: free_port() for name in ("east", "west")}
    setup.init(state, (HOST,), f"{HOST}:{free_port()}", f"{HOST}:{free_port()}", "clinic")
    addresses = {f"{HOST}:{port}": name for name, port in ports.items()}
    with (state / "fedserver.yaml").open("a") as file:
        file.write(f"gateways: {list(addresses)}\n")
    policy = RoundPolicy(devices=DEVICES, minimum=DEVICES, straggler_factor=0.0, device_timeout=3600.0)

    async def story() -> list[set[str]]:
        with daemon(state, options=()), AuthorityClient(state) as operator:
            folders = {name: make(state, tmp_path / name, port) for name, port in ports.items()}
            with gateway(folders["east"]) as east, gateway(folders["west"]) as west:
                running = {"east": east, "west": west}
                _, line = operator.create_token(Terms(uses=DEVICES))
                roots = [tmp_path / f"d{number}" for number in range(DEVICES)]
                for root in roots:
                    await join.join(DeviceFolder(root), parse(line), root.name, Console())
                operator.start_run(spec(policy=policy), MODEL)
                kill = lambda address: running[addresses[address]].kill()  # noqa: E731
                called = await asyncio.gather(
                    *(visit(root, number, kill) for number, root in enumerate(roots))
                )
                *_, status = await asyncio.to_thread(lambda: list(operator.watch("toy")))
                models = {"global": await asyncio.to_thread(operator.fetch, status.models["global"])}
        assert status.summary.stage == "finished", status
        assert not status.abandoned
        assert same_models(models, expected())
        return list(called)

    called = asyncio.run(story())
    assert set().union(*called) == set(addresses), "no device calls the server itself"
    assert len(called[0]) == 2, "the device whose gateway was killed went on to the other one"
