"""Predictions for programs of this machine, from a process that may die and is replaced."""

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

from fedclient.config import WorkConfig, host_of
from fedclient.faults import WorkerDied
from fedclient.store.state import GRAPH, MODEL, PLACEMENT, read_json
from fedclient.work.spawning import Child
from shoal.core.errors import ConfigError, DeviceFault, StorageFault
from shoal.core.rollout import Counts

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
    restart; None: there is none yet. shadow: the same for a model to try beside it, with what was counted."""

    def __init__(self, config: WorkConfig, at: socket.socket, say: Callable[[str], None]) -> None:
        self._config, self._socket, self._say = config, at, say
        self._process: Child | None = None
        self._turn = asyncio.Lock()
        self.model: Path | None = None
        self.shadow: tuple[Path, Counts] | None = None

    def can_use(self, folder: Path) -> bool:
        """Whether the files of a model are in this folder; a device with a learner needs no graph."""
        return all((folder / name).is_file() for name in (MODEL, *([] if self._config.learner else [GRAPH])))

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

    async def try_out(self, folder: Path | None, counts: Counts) -> str:
        """Predict with the model of this folder, too, and go on to count from here; or say why not.

        folder: None: with no other model any more.
        """
        async with self._turn:
            self.shadow = None if folder is None else (folder, counts)
            try:
                return await self._order_shadow()
            except WorkerDied as died:
                await self._without_shadow()
                return f"it ended the process that tried it: {died}"

    async def counts(self) -> Counts:
        """What the process has counted. Raises WorkerDied, and then it is another one that has counted
        nothing since it was given some last."""
        async with self._turn:
            if self.shadow is None or self._process is None:
                return Counts()
            try:
                found = Counts(*await self._ask({"counts": True}))
            except WorkerDied:
                await self._without_shadow()
                raise
            self.shadow = self.shadow[0], found
            return found

    async def watch(self) -> None:
        """Replace the process whenever it dies. Runs until it is canceled."""
        while True:
            process = self._process
            if process is not None:
                await process.process.wait()
            async with self._turn:
                if self._process is process:
                    self._say("the process that answers predictions died, and is replaced")
                    with contextlib.suppress(WorkerDied, DeviceFault):
                        await self._without_shadow()
            await asyncio.sleep(RESTART_SECONDS)

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.end()

    async def _start(self) -> None:
        await self.stop()
        descriptor = self._socket.fileno()
        threads = self._config.compute.threads
        module, what = "fedclient.light.endpoint", "it"
        frugal = self._config.learner is None
        self._process = await Child.start(module, what, threads, frugal, files=(descriptor,))
        if refused := await self._ask({"config": asdict(self._config), "sockets": [descriptor]}):
            raise DeviceFault(f"predictions cannot be served: {refused}")
        if self.model is not None and (refused := await self._order(self.model)):
            self._say(f"the stored model is not used: {refused}")
        if self.shadow is not None:
            try:
                refused = await self._order_shadow()
            except WorkerDied as died:
                await self._without_shadow()
                refused = str(died)
            if refused:
                self._say(f"the model of a rollout is not tried: {refused}")

    async def _without_shadow(self) -> None:
        """Replace a process that has died. It may be the model in the shadow that has ended it, and would end
        the next one, too; after a start of the agent it gets another try."""
        self.shadow = None
        await self._start()

    async def _order(self, folder: Path) -> str:
        known = read_json(folder / PLACEMENT)
        facts = {name: known.get(name) for name in ("run", "cluster", "model", "mixture", "confidence")}
        return str(await self._ask({**_files(folder), "facts": facts}))

    async def _order_shadow(self) -> str:
        order: dict[str, Any] = {"shadow": True}
        if self.shadow is not None:
            order |= {**_files(self.shadow[0]), "counts": astuple(self.shadow[1])}
        return str(await self._ask(order))

    async def _ask(self, order: Mapping[str, Any]) -> Any:
        """What the process says to an order. Raises WorkerDied."""
        assert self._process is not None
        return json.loads(await self._process.ask(json.dumps(order, default=str).encode(), within=OPENING))


def _files(folder: Path) -> dict[str, str]:
    return {"graph": str(folder / GRAPH), "model": str(folder / MODEL)}
