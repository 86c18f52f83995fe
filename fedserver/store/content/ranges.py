"""Parts of blobs, read where they last: in the bucket, or in the folder that several machines share.

For processes that need some bytes of many blobs, and have no state folder. A part says nothing about the
SHA-256 of its blob: the one who asked for it has to compare.
"""

import os
import re
from pathlib import Path
from typing import Protocol

from fedserver.store.content.bucket import Bucket, BucketAddress
from fedserver.store.content.bucket_copies import KEY
from shoal.core.errors import BadPayload, DataFault, NotFound
from shoal.shell.disk import storing

FILE = re.compile(r"blobs-[0-9a-f]{16}/blobs/[0-9a-f]{2}/[0-9a-f]{64}")
"""The place of a blob in a shared folder, see `fedserver.store.engines.blob_folder`."""


class Ranges(Protocol):
    """For any thread. A place is what `Blobs.place` has said.

    Raises BadPayload if it is not a place, NotFound if nothing is there, DataFault if it ends too early, and
    StorageFault.
    """

    def read(self, place: str, start: int, size: int) -> bytes: ...

    def close(self) -> None: ...


def ranges_of(blobs: Path | BucketAddress) -> Ranges:
    """Raises ConfigError if boto3 is missing or cannot use the address."""
    return BucketRanges(blobs) if isinstance(blobs, BucketAddress) else FolderRanges(blobs)


class FolderRanges:
    def __init__(self, shared: Path) -> None:
        self._shared = shared

    def read(self, place: str, start: int, size: int) -> bytes:
        path = self._shared / _checked(place, FILE)
        with storing(path):
            try:
                with path.open("rb") as file:
                    return _whole(os.pread(file.fileno(), size, start), size, place)
            except FileNotFoundError:
                raise NotFound(f"there is no file {path}", "give the folder that the servers use") from None

    def close(self) -> None:
        pass


class BucketRanges:
    def __init__(self, address: BucketAddress) -> None:
        self._address, self._bucket = address, Bucket(address)

    def read(self, place: str, start: int, size: int) -> bytes:
        found = self._bucket.part(_checked(place, KEY), start, size)
        if found is None:
            hint = "give the bucket and the prefix that the servers use"
            raise NotFound(f"the bucket {self._address} has no object {place}", hint)
        return _whole(found, size, place)

    def close(self) -> None:
        self._bucket.close()


def _checked(place: str, pattern: "re.Pattern[str]") -> str:
    if not pattern.fullmatch(place):
        raise BadPayload(f"{place!r} is not the place of a blob", "use servers and reducers of one version")
    return place


def _whole(data: bytes, size: int, place: str) -> bytes:
    if len(data) != size:
        raise DataFault(f"{place} ends after {len(data)} of {size} bytes", "look at the disk or the bucket")
    return data
