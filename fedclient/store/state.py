"""The device's folder: its name, its identity, what it did last, and everything that outlives a process.

device          its name, kept from its first use
identity/       its key and certificate, once it has joined
lock            held by the one agent that works here
status.json     what it did last, for `fedclient status`
privacy/        what was released with a guarantee and what it cost; see `fedclient.store.ledger`
mark            the last mark of the server, which reveals a server that was restored from an old backup
outbox/         the result that the server has not accepted yet
memory/         what is remembered of a run from task to task; see `fedclient.store.memory`
blobs/          models that came and results that go
model/          the model that `fedclient place` fetched
software/       new versions of this program; see `fedclient.software.folder`
shadow/         the model of another release, which is tried beside it; see `fedclient.light.shadow`
watch/          whether the data are still like those that it came for; see `fedclient.placing.watching`
"""

import fcntl
import json
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedclient.store.memory import Memory
from shoal.core.errors import BadPayload, ConfigError, DiskFull, InUse, StorageFault, TooManyFiles
from shoal.core.exchange.link import Report
from shoal.core.exchange.wire import report_from_bytes, report_to_bytes
from shoal.shell import crash
from shoal.shell.disk import show, storing, sweep, sync_folder, write

STATUS = "status.json"
MODEL, PLACEMENT, GRAPH = "model.safetensors", "placement.json", "graph.onnx"
"""In the folder `model`: the weights, where they come from, and the network on a device without a learner."""
OTHER = "model-{}.safetensors"
"""Beside it: another model of its mixture, named by what is in it."""
MAX_MARK = 256


def name_of_machine(tail: str) -> str:
    """A name for a device that was given none: that of its machine, and `tail`."""
    host = "".join(c if c.isascii() and c.isalnum() else "-" for c in socket.gethostname())
    return f"{host.strip('-')[:40] or 'device'}-{tail}"


class DeviceFolder:
    """The folder `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.blobs, self.outbox, self.memory = root / "blobs", root / "outbox", root / "memory"
        self.privacy, self.identity = root / "privacy", root / "identity"
        self.model, self.shadow = root / "model", root / "shadow"
        self.mark = Mark(root / "mark")

    def known_device(self) -> str | None:
        """The name in this folder, or None."""
        with suppress(OSError, UnicodeDecodeError), (self.root / "device").open() as file:
            return file.read(64).strip() or None
        return None

    def device(self, given: str | None) -> str:
        """The device's name in this folder. At first the given name, or else a new one, is stored.

        Raises ConfigError if the given name is not the stored one.
        """
        name = self.agreed(given) or name_of_machine(secrets.token_hex(3))
        if self.known_device() is None:
            write(self.root / "device", f"{name}\n".encode())
            crash.point("device.named")
        return name

    def agreed(self, given: str | None) -> str | None:
        """The stored name, or else the given one. Raises ConfigError if they differ."""
        known = self.known_device()
        if known is not None and given not in (None, known):
            raise ConfigError(
                f"the state folder {self.root} belongs to device {known}, and this one is called {given}",
                "give another one with --state, or leave the name out",
            )
        return known or given

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder, which is created readable only by its owner. Raises InUse if another
        process works in it.
        """
        path = self.root / "lock"
        with storing(path):
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = path.open("w")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InUse(
                    f"{self.root} is in use by another fedclient", "stop that one, or use another --state"
                ) from None
            written = (self.outbox, self.blobs, self.memory, self.model, self.shadow, self.identity)
            for folder in (self.root, *written, self.root / "watch"):
                sweep(folder)
            yield

    def busy(self) -> bool:
        """Whether an agent works here now."""
        try:
            with (self.root / "lock").open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False


class Mark:
    """A point in the server's history, as the server wrote it. The device returns it at its next hello."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> str:
        """The last mark; "" if there is no readable one."""
        with suppress(OSError, UnicodeDecodeError), self._path.open() as file:
            return file.read(MAX_MARK)
        return ""

    def keep(self, mark: str) -> None:
        """Store a mark: on return it survives a crash and a power cut. "" keeps the stored one.

        On a full disk the old one stays: it proves less, but the work can continue.
        """
        if mark and mark != self.read():
            with suppress(DiskFull):
                write(self._path, mark.encode())
                crash.point("device.mark-kept")


class Outbox:
    """Holds one finished result, with the key of its work, until the server has it.

    memory: what that work wants remembered counts from the moment at which the result is here.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.memory = Memory.beside(folder)

    def keep(self, key: str, report: Report) -> None:
        """Store a result: on return it survives a crash and a power cut. Raises StorageFault."""
        self.clear()
        write(self._folder / key, report_to_bytes(report))
        self.memory.settle(key)

    def pending(self) -> tuple[str, Report] | None:
        """The result, if there is one. A damaged file is deleted, and the work is done again.

        Raises TooManyFiles, which says nothing of the file, and StorageFault.
        """
        with storing(self._folder):
            found = sorted(self._folder.glob("[!.]*"))
        for path in found:
            try:
                with storing(path):
                    return path.name, report_from_bytes(path.read_bytes())
            except TooManyFiles:
                raise
            except (StorageFault, BadPayload):
                with storing(path):
                    path.unlink(missing_ok=True)
        return None

    def kept_at(self, key: str) -> float | None:
        """When the result of this work was stored, seconds since 1970; None if there is none."""
        with suppress(OSError):
            return (self._folder / key).stat().st_mtime
        return None

    def clear(self) -> None:
        if self._folder.is_dir():
            with storing(self._folder):
                found = list(self._folder.iterdir())
                for path in found:
                    self.memory.settle(path.name)  # a crash may have come between the two steps of `keep`
                    path.unlink()
                if found:
                    sync_folder(self._folder)


@dataclass
class Status:
    """What the agent is doing and did last. doing: one line. at: Unix time in seconds, by this device's
    clock.

    error: {"code", "message", "hint", "when"} of the last error; when: by this device's clock, for people.
    """

    device: str
    server: str
    doing: str = ""
    run: str = ""
    round: int = 0
    title: str = ""
    cluster: str = ""
    outcome: str = ""
    tasks: int = 0
    error: dict[str, str] = field(default_factory=dict)
    at: float = 0.0

    def save(self, root: Path) -> None:
        """Write the file that `fedclient status` reads."""
        self.at = time.time()
        show(root / STATUS, json.dumps(asdict(self)).encode())


def read_json(path: Path) -> dict[str, Any]:
    """What was saved there last; empty if there is no readable file."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
