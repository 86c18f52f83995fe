"""Predictions for programs of this machine, from a process that may die and is replaced."""

import asyncio
import contextlib
import json
import signal
import socket
from asyncio.subprocess import Process
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from fedclient.config import WorkConfig, host_of
from fedclient.faults import WorkerDied
from fedclient.store.state import GRAPH, MODEL, PLACEMENT, read_json
from fedclient.work.spawning import end, spawn
from shoal.core.errors import ConfigError, DeviceFault, StorageFault

UNIX = "unix:"
BACKLOG = 128
OPENING = 120.0
"""Seconds within which a model must be open: what takes longer counts as hanging."""
RESTART_SECONDS = 1.0
"""Seconds before a process that died is replaced."""


@contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    """A socket at unix:PATH, or at HOST:PORT of this machine. Raises ConfigError, StorageFault."""
    if address.startswith(UNIX):
        path = Path(address.removeprefix(UNIX)).absolute()
        found = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(FileNotFoundError):
            if path.exists() and not path.is_socket():
                raise ConfigError(f"{path} is a file", "give another path to the socket")
            path.unlink()
        target: object = str(path)
    else:
        host = host_of(address)
        if host not in ("localhost", "127.0.0.1", "::1"):
            raise ConfigError(
                f"{host} is not this machine", "serve on 127.0.0.1:PORT or unix:PATH, behind a proxy of yours"
            )
        found = socket.socket(socket.AF_INET6 if host == "::1" else socket.AF_INET)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        target = (host, int(address.rpartition(":")[2]))
    with found:
        try:
            found.bind(target)  # type: ignore[arg-type]
            found.listen(BACKLOG)
        except OSError as error:
            raise StorageFault(f"{address}: {error.strerror}", "choose another address") from None
        yield found


class Endpoint:
    """Keeps a process of `endpoint.py` alive on one socket. model: the folder of the model to use after a
    restart; None: there is none yet."""

    def __init__(self, config: WorkConfig, at: socket.socket, say: Callable[[str], None]) -> None:
        self._config, self._socket, self._say = config, at, say
        self._process: Process | None = None
        self._turn = asyncio.Lock()
        self.model: Path | None = None

    async def start(self) -> None:
        """Raises DeviceFault if the process cannot serve here at all."""
        async with self._turn:
            await self._start()

    async def use(self, folder: Path) -> str:
        """Answer with the model of this folder from now on; or say why not, and the earlier one stays."""
        async with self._turn:
            try:
                return await self._order(folder)
            except WorkerDied as died:
                await self._start()
                return f"it ended the process that tried it: {died}"

    async def watch(self) -> None:
        """Replace the process whenever it dies. Runs until it is canceled."""
        while True:
            process = self._process
            if process is not None:
                await process.wait()
            async with self._turn:
                if self._process is process:
                    self._say("the process that answers predictions died, and is replaced")
                    with contextlib.suppress(WorkerDied, DeviceFault):
                        await self._start()
            await asyncio.sleep(RESTART_SECONDS)

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await end(process)

    async def _start(self) -> None:
        await self.stop()
        descriptor = self._socket.fileno()
        threads = self._config.compute.threads
        self._process = await spawn("fedclient.light.endpoint", threads, frugal=True, files=(descriptor,))
        given = {"config": asdict(self._config), "sockets": [descriptor]}
        if refused := await self._ask(json.dumps(given, default=str)):
            raise DeviceFault(f"predictions cannot be served: {refused}")
        if self.model is not None and (refused := await self._order(self.model)):
            self._say(f"the stored model is not used: {refused}")

    async def _order(self, folder: Path) -> str:
        known = read_json(folder / PLACEMENT)
        facts = {name: known.get(name) for name in ("run", "cluster", "model", "mixture", "confidence")}
        files = {"graph": str(folder / GRAPH), "model": str(folder / MODEL)}
        return await self._ask(json.dumps({**files, "facts": facts}))

    async def _ask(self, line: str) -> str:
        """Send one line, read one. Raises WorkerDied."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line.encode() + b"\n")
            await process.stdin.drain()
            answer = await asyncio.wait_for(process.stdout.readline(), OPENING)
            return str(json.loads(answer))
        except (ConnectionError, ValueError, TimeoutError):
            code = await end(process)
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            raise WorkerDied(f"it ended with {name}", "look at what it printed") from None
