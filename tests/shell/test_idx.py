import gzip
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from shoal.shell import idx


def encoded(shape: tuple[int, ...], body: bytes, kind: int = 8) -> bytes:
    return struct.pack(f">HBB{len(shape)}I", 0, kind, len(shape), *shape) + body


def stored(folder: Path, content: bytes) -> Path:
    path = folder / "some-idx-file"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_reads_shape_and_order(tmp_path: Path, pack: type[bytes]) -> None:
    array = idx.read(stored(tmp_path, pack(encoded((2, 3, 4), bytes(range(24))))))
    assert array.dtype == np.uint8
    assert (array == np.arange(24).reshape(2, 3, 4)).all()


WHOLE = encoded((2, 3), b"abcdef")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "4 more bytes"),
        (WHOLE[:7], "5 more bytes"),
        (b"\x89PNG" + WHOLE, "header"),
        (encoded((6,), b"abcdef", kind=0x0D), "header"),
        (encoded((), b""), "header"),
        (encoded((1, 1, 1, 1, 1), b"a"), "header"),
        (encoded((0, 3), b""), "declares 0 bytes"),
        (encoded((2**32 - 1, 2**32 - 1), b""), "are allowed"),
        (encoded((1 << 29,), b"abc"), "more than the file can hold"),
        (WHOLE[:-1], "1 more bytes"),
        (WHOLE + b"x", "goes on after the 6 bytes"),
    ],
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_bad_file_is_named_with_its_fault(
    tmp_path: Path, content: bytes, problem: str, pack: type[bytes]
) -> None:
    path = stored(tmp_path, pack(content))
    with pytest.raises(ValueError, match=problem) as caught:
        idx.read(path)
    assert str(path) in str(caught.value)
    assert "fetch the file again" in str(caught.value)


def damaged(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


@pytest.mark.parametrize("at", [2, 12, -5], ids=["gzip header", "deflate stream", "checksum"])
def test_a_damaged_gzip_stream_is_refused(tmp_path: Path, at: int) -> None:
    packed = gzip.compress(encoded((1000,), bytes(1000)), mtime=0)
    with pytest.raises(ValueError, match="gzip stream is damaged"):
        idx.read(stored(tmp_path, damaged(packed, at % len(packed))))


def test_a_gzip_stream_cut_short_is_refused(tmp_path: Path) -> None:
    packed = gzip.compress(encoded((1000,), np.random.RandomState(0).bytes(1000)))
    with pytest.raises(ValueError, match="some-idx-file"):
        idx.read(stored(tmp_path, packed[:-200]))


def peak_of_refusing(path: Path) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="some-idx-file"):
            idx.read(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_gzip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    bomb = gzip.compress(encoded((10,), bytes(50_000_000)))
    assert peak_of_refusing(stored(tmp_path, bomb)) < 1_000_000


def test_nothing_is_allocated_for_a_size_the_file_cannot_hold(tmp_path: Path) -> None:
    assert peak_of_refusing(stored(tmp_path, encoded((1 << 29,), bytes(100)))) < 1_000_000


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        idx.read(tmp_path / "nothing")
