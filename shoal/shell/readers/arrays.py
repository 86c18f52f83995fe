"""Arrays in npz files, and in the idx files of MNIST."""

import zipfile
import zlib
from pathlib import Path

import numpy as np

from shoal.core.errors import DataFault
from shoal.core.types import Array
from shoal.shell import idx

Arrays = tuple[Array, Array | None]
"""x, and y where there are labels."""


def read_npz(path: Path, x: str = "x", y: str = "y") -> Arrays | None:
    """The arrays of these names; None when there is no x. Raises DataFault, or OSError as `open` does."""
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise DataFault(
                f"{path} is a single array, not an npz file", "save it with numpy.savez(path, x=...)"
            )
        with archive:
            if x not in archive.files:
                return None
            return archive[x], archive[y] if y in archive.files else None
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error, KeyError, RuntimeError) as error:
        if "allow_pickle" in str(error):
            problem = "is no npz file of plain arrays, and pickled objects are never opened"
            raise DataFault(f"{path} {problem}", "save arrays of numbers with numpy.savez") from None
        raise DataFault(f"{path} is not a whole npz file: {error}", "copy or save it again") from None
    except MemoryError:
        raise DataFault(f"{path} does not fit into the memory", "split the file") from None


def read_idx(path: Path, labels: Path | None) -> Arrays:
    """An idx file and the one of its labels, if any. Raises DataFault, or OSError as `open` does."""
    try:
        return idx.read(path), None if labels is None else idx.read(labels)
    except ValueError as error:
        raise DataFault(str(error)) from None
