"""Where blobs are a second time: a folder on the same disk, or a bucket (`bucket_copies`)."""

import errno
import hashlib
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path

from fedserver.store.content.sums import Sums
from shoal.core.errors import StorageFault
from shoal.core.exchange.wire import CHUNK
from shoal.shell.disk import make_folder, settle, storing, sync, temporary


class Copies:
    """Second copies of blobs, for any thread. By default there is nothing to do, and nothing to reach.

    are_complete: whether every blob has a copy before a row refers to it. Then the copies are what lasts, and
    a blob that is missing in the folder has only not been fetched yet.
    """

    are_complete: bool

    @property
    def away(self) -> StorageFault | None:
        """Why they cannot be reached, according to the last attempt; None if they can."""
        return None

    def add(self, path: Path) -> None:
        """Called with each blob before a row refers to it. Raises StorageFault."""

    def keep(self, wanted: Collection[str], path_of: Callable[[str], Path]) -> None:
        """Make the copies of these blobs that are missing, also where one is damaged; delete others, unless
        they are complete."""

    def take(self, file: Path, name: str) -> None:
        """Turn a file that was written together with a blob into its copy. `keep` makes it last. Raises
        StorageFault."""
        raise AssertionError("every blob is added")

    def ensure(self, path: Path) -> bool:
        """Whether the blob with this path has a copy; one is made if possible. Raises StorageFault."""
        raise NotImplementedError

    def check(self, name: str) -> bool:
        """Whether a copy is sound, as far as that can be seen at its place; one that is not is deleted."""
        return True

    def restore(self, path: Path) -> bool:
        """Write the blob with this path again. False if it has no sound copy."""
        raise NotImplementedError

    def remove(self, names: Iterable[str]) -> None:
        """Delete the copies of blobs that no row refers to any more."""

    def clean_up(self) -> None:
        """Delete what earlier servers left."""

    def probe(self) -> None:
        """Learn whether they can be reached. Raises StorageFault."""

    def close(self) -> None:
        """End what goes on beside."""


class FolderCopies(Copies):
    """Copies of the newest models, in a folder beside the blobs, which `keep` makes and deletes. tmp: for
    files that are being written."""

    are_complete = False

    def __init__(self, folder: Path, tmp: Path) -> None:
        self._folder, self._tmp = folder, tmp
        self._taken, self._lasting = set[str](), set[str]()

    def keep(self, wanted: Collection[str], path_of: Callable[[str], Path]) -> None:
        # What has come since may be of a model that is the newest in a moment.
        taken, self._taken = self._taken, set()
        with storing(self._folder):
            for path in self._folder.glob("??/*"):
                if path.name not in wanted and path.name not in taken:
                    path.unlink(missing_ok=True)
            for name in sorted(wanted):
                if not self._path(name).exists():
                    if path_of(name).exists():
                        duplicate(path_of(name), self._path(name), self._tmp)
                elif name not in self._lasting:
                    sync(self._path(name))
        self._lasting = set(wanted)

    def take(self, file: Path, name: str) -> None:
        self._taken.add(name)
        with storing(self._folder):
            make_folder(self._path(name).parent)
            file.rename(self._path(name))

    def ensure(self, path: Path) -> bool:
        self._taken.add(path.name)
        with storing(self._folder):
            if not self._path(path.name).exists():
                duplicate(path, self._path(path.name), self._tmp)
            return self._path(path.name).exists()

    def check(self, name: str) -> bool:
        path = self._path(name)
        if not path.exists() or not fault(path):
            return True
        with storing(path):
            path.unlink(missing_ok=True)
        return False

    def restore(self, path: Path) -> bool:
        if fault(self._path(path.name)):
            return False
        duplicate(self._path(path.name), path, self._tmp)
        return True

    def _path(self, name: str) -> Path:
        return self._folder / name[:2] / name


def fault(path: Path, sums: Sums | None = None) -> str:
    """What is wrong with a file whose name is its hash; "" if nothing is. sums: get its bytes."""
    sums = Sums() if sums is None else sums
    with storing(path):
        try:
            sums.add_file(path)
        except FileNotFoundError:
            return "is missing"
        except OSError as error:
            if error.errno != errno.EIO:  # such as too many open files, which says nothing about the blob
                raise
            return "cannot be read"
    return "" if sums.sha256 == path.name else "is damaged"


def duplicate(source: Path, target: Path, tmp: Path) -> None:
    """Copy a file whose name is its hash. A damaged file is not copied."""
    with suppress(FileNotFoundError), source.open("rb") as old, temporary(tmp) as new:
        sha = hashlib.sha256()
        while chunk := old.read(CHUNK):
            sha.update(chunk)
            new.write(chunk)
        if sha.hexdigest() == target.name:
            settle(new, target)
