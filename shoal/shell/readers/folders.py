"""The files below a folder. What cannot be read is never passed over: a class would be missing then."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from shoal.core.errors import DataFault

Found = Iterator[tuple[PurePosixPath, Path]]
"""Files, with their names below some folder."""


def files_below(folder: Path) -> Found:
    """The files in a folder and in those below it. Links are followed.

    Raises DataFault for a folder that cannot be read, and for a link that leads nowhere.
    """
    return _below(folder, PurePosixPath(), frozenset())


def _below(folder: Path, name: PurePosixPath, above: frozenset[tuple[int, int]]) -> Found:
    """above: the folders that this one is in: a link to one of them would never end, and has nothing new."""
    with readable(folder):
        status = folder.stat()
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    here = (status.st_dev, status.st_ino)
    if here in above:
        return
    for entry in entries:
        with readable(Path(entry.path)):
            if entry.is_symlink():
                entry.stat()  # else a link that leads nowhere would count as no file
            is_folder, is_file = entry.is_dir(), entry.is_file()
        if is_folder:
            yield from _below(Path(entry.path), name / entry.name, above | {here})
        elif is_file:
            yield name / entry.name, Path(entry.path)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Around reading `path`: an OSError becomes a DataFault that names it."""
    try:
        yield
    except OSError as error:
        what = "the folder" if path.is_dir() else "the link" if path.is_symlink() else "the file"
        raise DataFault(
            f"{what} {path} cannot be read: {error.strerror or error}",
            "let the user who runs this read it, or take it out of the data",
        ) from None
