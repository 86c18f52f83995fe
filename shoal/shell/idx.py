"""The idx format of the MNIST files: unsigned bytes behind a header of big-endian sizes, plain or gzipped.

    2 bytes    zero
    1 byte     0x08, the element type: unsigned byte
    1 byte     d, the number of dimensions
    4 d bytes  their sizes, unsigned 32-bit big-endian
    the rest   one byte per element, last dimension fastest

Source: Y. LeCun's MNIST page, "the idx file format". The other element types of the format are not
supported: no data set here uses them.

A file is not trusted. Its declared size is compared with a limit and with the length of the file before any
memory is allocated, and reading stops there (except for gzip's own small buffer), so neither a false header
nor a gzip bomb can fill the memory.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, NoReturn

import numpy as np
import numpy.typing as npt

MAX_DIMENSIONS = 4
MAX_BYTES = 1 << 30
_UNSIGNED_BYTE = 0x08
_GZIP_MAGIC = b"\x1f\x8b"
_CHUNK = 1 << 20
_DEFLATE_MAX_RATIO = 1032  # no deflate stream expands more than this


def read(path: Path) -> npt.NDArray[np.uint8]:
    """The array in the idx file at `path`, gzipped or not (its first bytes decide, not its name).

    Raises ValueError, naming the file, the problem and a hint, when it is not a complete and well-formed idx
    file of at most `MAX_BYTES`, and OSError when it cannot be opened.
    """
    stored = path.stat().st_size
    with path.open("rb") as file:
        zipped = file.read(2) == _GZIP_MAGIC
        file.seek(0)
        if not zipped:
            return _parse(file, path, stored)
        try:
            with gzip.GzipFile(fileobj=file) as unzipped:
                return _parse(unzipped, path, stored * _DEFLATE_MAX_RATIO)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            _refuse(path, f"its gzip stream is damaged ({error})")


def _parse(stream: BinaryIO | gzip.GzipFile, path: Path, available: int) -> npt.NDArray[np.uint8]:
    """Read the header, then the elements. available: an upper limit on the bytes that the file can hold."""
    zero, kind, dimensions = struct.unpack(">HBB", _exactly(stream, 4, path))
    if zero != 0 or kind != _UNSIGNED_BYTE or not 1 <= dimensions <= MAX_DIMENSIONS:
        _refuse(path, f"its header {zero:04x}{kind:02x}{dimensions:02x} is not that of an idx file of bytes")
    shape = struct.unpack(f">{dimensions}I", _exactly(stream, 4 * dimensions, path))
    size = math.prod(shape)
    if not 0 < size <= MAX_BYTES:
        _refuse(path, f"it declares {size} bytes in shape {shape}, and 1 to {MAX_BYTES} are allowed")
    if size > available:
        _refuse(path, f"it declares {size} bytes in shape {shape}, more than the file can hold")
    elements = _exactly(stream, size, path)
    if stream.read(1):  # also makes gzip verify its checksum
        _refuse(path, f"it goes on after the {size} bytes that its header declares")
    return np.frombuffer(elements, np.uint8).reshape(shape)


def _exactly(stream: BinaryIO | gzip.GzipFile, count: int, path: Path) -> bytearray:
    data = bytearray()
    while len(data) < count:
        chunk = stream.read(min(count - len(data), _CHUNK))
        if not chunk:
            _refuse(path, f"it ends where {count - len(data)} more bytes should follow")
        data += chunk
    return data


def _refuse(path: Path, problem: str) -> NoReturn:
    raise ValueError(f"{path}: {problem}; fetch the file again from its publisher and compare checksums")
