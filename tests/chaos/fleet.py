"""One server and its devices as processes, each device behind a network of its own that can fail.

Both sides show certificates, as people run them: the server has an authority of its own, and a device joins
by a token. A device calls its network's address in the server's place, for which the server's certificate is
good too; it joins past that network, once, before any fault.
"""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fedclient.store.state import DeviceFolder
from fedserver.cli.options import answers
from fedserver.config import SETTINGS
from fedserver.rpc.client import OperatorClient
from fedserver.store.identities.records import Terms
from shoal.core.errors import ShoalError, Unavailable
from shoal.core.identity.joining import Role
from tests.chaos import work
from tests.chaos.device import RECEIPTS
from tests.chaos.programs import LOOK, Program, marked, once
from tests.chaos.proxy import Proxy
from tests.waiting import HANG, free_port

CADENCE = {"poll": 2.0, "heartbeat": 1.0, "tick": 0.05, "grace": 5.0}
"""Short, so that many rounds fit into a minute; nothing else is set apart from what people get."""
HOSTS = ("127.0.0.1", "localhost")
"""What the server's certificate is good for; the first is where a network of ours listens, too."""


@dataclass(frozen=True)
class Restart:
    """began: when the process was started, by the monotonic clock. seconds: until its first accepted call."""

    began: float
    seconds: float


class Device:
    """A device: its program, its network, and the receipts that it got."""

    def __init__(self, name: str, folder: Path, proxy: Proxy, program: Program) -> None:
        self.name, self.folder, self.proxy, self.program = name, folder, proxy, program

    @property
    def ledger(self) -> Path:
        """The folder of its privacy ledger."""
        return DeviceFolder(self.folder / "state").privacy

    def receipts(self) -> list[dict[str, Any]]:
        """What the server acknowledged, oldest first. A line that a kill cut short is none."""
        try:
            lines = (self.folder / "receipts").read_text().split("\n")[:-1]
        except OSError:
            return []
        return [json.loads(line) for line in lines]


class Fleet:
    """Made by `start`. `folder`/server is the state folder; the programs' logs lie beside it.

    secure: mutual TLS; else plain text.
    """

    def __init__(self, folder: Path, secure: bool = True) -> None:
        self.folder, self.state, self.secure = folder, folder / "server", secure
        self.mark = str(folder)
        self.port = free_port()
        self.devices: dict[str, Device] = {}
        self.restarts: list[Restart] = []
        line = ["-m", "fedserver", "up", "--state", str(self.state)]
        self.server = Program("server", line, folder / "server.log", self.mark)
        self._timing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Server and devices run, and the server takes calls."""
        self.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        where = {"join_listen": f"127.0.0.1:{free_port()}", "hosts": list(HOSTS)}
        settings = {
            "state": ".",
            "listen": f"127.0.0.1:{self.port}",
            "cadence": CADENCE,
            **(where if self.secure else {"insecure_loopback": True}),
        }
        (self.state / SETTINGS).write_text(yaml.safe_dump(settings))
        if self.secure:
            await self.must(["fedserver", "init", "--state", str(self.state)])
        await self.server.start()
        await self.answering()
        for name in work.NAMES:
            self.devices[name] = await self._device(name)
            await self.devices[name].program.start()
        self._timing = asyncio.create_task(self._time_restarts())

    async def run(self, verb: list[str], environment: Mapping[str, str] = {}, given: str = "") -> int:
        """A verb of ours beside the fleet, to its end; its exit code. given: what it reads."""
        return await once(["-m", *verb], self.folder / "verbs.log", self.mark, environment, given)

    async def must(self, verb: list[str], given: str = "") -> None:
        """The same. Raises Unavailable when it does not succeed."""
        if code := await self.run(verb, given=given):
            raise Unavailable(
                f"{verb[0]} {verb[1]} ended with exit code {code}", f"see {self.folder / 'verbs.log'}"
            )

    async def token(self) -> str:
        """A join string for one device."""
        _, line = await self.ask(lambda operator: operator.create_token(Terms(Role.TRAIN)))
        return str(line)

    async def stop(self) -> dict[str, int]:
        """End everything in the orderly way; the exit codes."""
        if self._timing is not None:
            self._timing.cancel()
        programs = [device.program for device in self.devices.values()] + [self.server]
        codes = dict(zip((p.name for p in programs), [await p.stop() for p in programs], strict=True))
        await self.close()
        return codes

    async def close(self) -> None:
        """No network any more. Safe to repeat."""
        for device in self.devices.values():
            await device.proxy.close()

    def disks(self) -> dict[str, Path]:
        """The state folder of each program."""
        return {"server": self.state, **{name: self.folder / name / "state" for name in work.NAMES}}

    def kill(self) -> None:
        """Whatever is still there of it."""
        for pid in marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def answering(self) -> None:
        """Wait until the server has accepted a call. Raises Unavailable."""
        until = time.monotonic() + HANG
        while True:
            try:
                if await asyncio.to_thread(self._call):
                    return
            except ShoalError:
                pass
            if time.monotonic() > until:
                raise Unavailable(f"the server accepts no call after {HANG:.0f} s", f"{self.server.log}")
            await asyncio.sleep(LOOK)

    async def ask(self, question: Any) -> Any:
        """What `question` finds out of an operator's client. Raises ShoalErrors, such as Unavailable."""

        def asked() -> Any:
            with OperatorClient(self.state) as operator:
                return question(operator)

        return await asyncio.to_thread(asked)

    def _call(self) -> bool:
        if not answers(self.state):
            return False
        with OperatorClient(self.state) as operator:
            operator.status()
        return True

    async def _time_restarts(self) -> None:
        """After every new start of the server: how long until it accepts a call."""
        began = self.server.began
        while True:
            await self.server.alive(after=began)
            began = self.server.began
            while self.server.began == began and self.server.pid is not None:
                try:
                    if await asyncio.to_thread(self._call):
                        self.restarts.append(Restart(began, time.monotonic() - began))
                        break
                except ShoalError:
                    pass
                await asyncio.sleep(LOOK)

    async def _device(self, name: str) -> Device:
        """A device with its data, its settings and its identity."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        work.write_data(name, folder)
        proxy = Proxy(lambda: ("127.0.0.1", self.port))
        await proxy.open()
        config = str(self.write_settings(name, proxy.address))
        if self.secure:
            join = ["fedclient", "join", "-", "--config", config, "--device", name]
            await self.must(join, await self.token())
        line = ["-m", "tests.chaos.device", "run", "--config", config]
        environment = {RECEIPTS: str(folder / "receipts")}
        program = Program(name, line, self.folder / f"{name}.log", self.mark, environment)
        return Device(name, folder, proxy, program)

    def write_settings(self, name: str, address: str) -> Path:
        """The file of the device in the folder of that name, which calls the server at `address`."""
        settings = {
            "server": address,
            "learner": work.LEARNER,
            "data": {"npz": "data.npz", "test": "test.npz", "shape": [1, 8, 8]},
            "privacy": {
                "epsilon": work.BUDGET.epsilon,
                "total_epsilon": work.BUDGET.total_epsilon,
                "allow_unprotected": True,
                "allow_plain_weights": True,
            },
            "limits": {"kept_bytes": 16 * work.MODEL},
            **({} if self.secure else {"device": name, "insecure_loopback": True}),
        }
        path = self.folder / name / "device.yaml"
        path.write_text(yaml.safe_dump(settings))
        return path
