"""The disk of one machine: real files, and beside them what of it a power cut would leave.

A file's bytes last once the file was synced, a name once its folder was. At a power cut every name and every
byte that was not is kept, lost or torn by a seeded choice. One promise of real file systems is kept: a rename
that is lost leaves the old name. The database is SQLite's own and taken as durable after each commit.
"""

import errno
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.histories.processes import Crashed, current

EXEMPT = ("shoal.db", "lock")
"""How names begin that are not looked after here."""

Entries = dict[str, int]


@dataclass
class Disk:
    """fail_in: the operation, counted from now, that fails once with EIO; 0 for none. full: no byte more."""

    root: Path
    chance: Random
    fail_in: int = 0
    full: bool = False
    _synced: dict[int, bytes] = field(default_factory=dict)
    _entries: dict[Path, Entries] = field(default_factory=dict)
    _renamed: dict[int, tuple[Path, Path]] = field(default_factory=dict)

    # -- faults -----------------------------------------------------------------------------------------

    def before(self, operation: str, path: Path, grows: bool) -> None:
        """Raises Crashed, or the OSError that this operation is to fail with; none for the world itself."""
        process = current()
        if process is None:
            return
        process.step(operation, self._named(path))
        if self.full and grows:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        if self.fail_in:
            self.fail_in -= 1
            if not self.fail_in:
                raise OSError(errno.EIO, "Input/output error", str(path))

    def after(self, operation: str, path: Path) -> None:
        if (process := current()) is not None:
            process.step(f"{operation} done", self._named(path))

    def _named(self, path: Path) -> str:
        return str(path)[len(str(self.root)) + 1 :]

    # -- what lasts -------------------------------------------------------------------------------------

    def sync(self, path: Path) -> None:
        """A file's bytes or a folder's names last from here on."""
        if path.is_dir():
            self._entries[path] = _listing(path)
            self._renamed = {key: move for key, move in self._renamed.items() if move[1].parent != path}
        else:
            self._synced[path.stat().st_ino] = path.read_bytes()

    def forget(self, path: Path) -> None:
        """The file is a new one, whatever one with its number held before."""
        self._synced.pop(path.stat().st_ino, None)

    def renamed(self, source: Path, target: Path) -> None:
        self._renamed[target.stat().st_ino] = (source, target)
        for folder in [each for each in self._entries if each.is_relative_to(source)]:  # of a folder
            self._entries[target / folder.relative_to(source)] = self._entries.pop(folder)

    def lose_power(self) -> None:
        """Make the files what a machine finds that lost its power now."""
        reverted = self._choose(self.root)
        for file, (source, target) in self._renamed.items():
            was = self._entries.get(source.parent, {}).get(source.name)
            if was != file:
                continue
            if target.is_dir():  # it moves with all that is in it, or not at all
                if target in reverted:
                    target.rename(source)
                reverted -= {source, target}
            elif target in reverted:
                reverted.add(source)
        for path in sorted(reverted):
            _remove(path)
            was = self._entries.get(path.parent, {}).get(path.name)
            if was is not None and path.parent.is_dir():
                path.write_bytes(self._synced.get(was, b""))
                self._synced[path.stat().st_ino] = self._synced.get(was, b"")
        self._tear(self.root)
        self._synced, self._entries, self._renamed = {}, {}, {}
        for folder, _, files in os.walk(self.root):
            self.sync(Path(folder))
            for name in files:
                self.sync(Path(folder, name))

    def _choose(self, folder: Path) -> set[Path]:
        """The names whose last change is lost."""
        lasting, now = self._entries.get(folder, {}), _listing(folder)
        reverted = set()
        for name in sorted({*lasting, *now}):
            path = folder / name
            if lasting.get(name) != now.get(name) and self.chance.random() < 0.5:
                reverted.add(path)
            elif path.is_dir():
                reverted |= self._choose(path)
        return reverted

    def _tear(self, folder: Path) -> None:
        for name, number in sorted(_listing(folder).items()):
            path = folder / name
            if path.is_dir():
                self._tear(path)
                continue
            lasting, now = self._synced.get(number, b""), path.read_bytes()
            if now != lasting:
                path.write_bytes(self._torn(lasting, now))

    def _torn(self, lasting: bytes, now: bytes) -> bytes:
        pairs = enumerate(zip(lasting, now, strict=False))
        same = next((place for place, (old, new) in pairs if old != new), min(len(lasting), len(now)))
        some = now[: same + self.chance.randrange(len(now) - same + 1)]
        zeros = bytes(len(now) - len(some))
        return self.chance.choice((now, lasting, some, some + zeros))


def _listing(folder: Path) -> Entries:
    """What is in a folder, by name: which file or folder that is."""
    with os.scandir(folder) as entries:
        return {entry.name: entry.inode() for entry in entries if not entry.name.startswith(EXEMPT)}


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def is_dead() -> bool:
    """Whether the code that runs now belongs to a process that has ended."""
    process = current()
    return process is not None and not process.alive


__all__ = ["Crashed", "Disk", "is_dead"]
