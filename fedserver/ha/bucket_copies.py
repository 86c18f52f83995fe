"""Blobs in a bucket, which is what lasts; the state folder has those that this server uses.

    PREFIX/<store>/<sha256>.<term>.<number>       an object for each time that a blob was stored

A bucket does not know who leads: a server that was stopped for a minute, and has lost the database meanwhile,
could still delete what it was about to delete. So no key is ever used twice. Each leader has a term, a number
from the database, and counts its objects; a server that deletes a blob deletes one object, and not the blob
that another server stores later under the same name. Of several, the last one of the last term counts: an
earlier one may be about to be deleted, and objects of a server that has lost the database while it stored
them are not referred to by any row.
"""

import itertools
import logging
import re
import threading
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fedserver.ha.bucket import Bucket
from fedserver.store.content.copies import Copies
from fedserver.store.content.sums import Sums
from shoal.core.errors import BucketAway
from shoal.shell.disk import settle, storing, temporary

log = logging.getLogger("shoal.server")

KEY = re.compile(r"(?P<store>[0-9a-f]+)/(?P<name>[0-9a-f]{64})\.(?P<term>[0-9]+)\.(?P<number>[0-9]+)")
FETCHES = 2
"""How often wrong bytes are fetched before the object is held to be damaged."""


class BucketCopies(Copies):
    """All blobs of a store in a bucket. tmp: the folder for files that are being written.

    found: the objects of this store. needed: the blobs that rows refer to. They were
    asked for in this order, in this term: an object that another server stores later is not among them.
    """

    are_complete = True

    def __init__(
        self,
        bucket: Bucket,
        store: str,
        term: int,
        found: Collection[str],
        needed: Collection[str],
        tmp: Path,
    ) -> None:
        self._bucket, self._store, self._term, self._tmp = bucket, store, term, tmp
        self._numbers, self._lock = itertools.count(1), threading.Lock()
        self._keys = {name: key for name, key in newest(found).items() if name in needed}
        used = set(self._keys.values())
        self._left = [key for key in found if KEY.fullmatch(key) and key not in used]
        self._deleting = ThreadPoolExecutor(1, thread_name_prefix="bucket")

    @property
    def away(self) -> BucketAway | None:
        return self._bucket.away

    def probe(self) -> None:
        self._bucket.probe(f"{self._store}/probe")

    def add(self, path: Path) -> None:
        name = path.name
        if name in self._keys:
            return
        key = f"{self._store}/{name}.{self._term}.{next(self._numbers)}"
        with storing(path):
            self._bucket.put(key, path, name)
        with self._lock:
            if self._keys.setdefault(name, key) != key:  # another thread has stored the same bytes meanwhile
                self._delete([key])

    def ensure(self, path: Path) -> bool:
        return path.name in self._keys

    def restore(self, path: Path) -> bool:
        key = self._keys.get(path.name)
        if key is None:
            return False
        for _ in range(FETCHES):
            with storing(path), temporary(self._tmp) as file:
                if not self._bucket.fetch(key, file):
                    break
                file.flush()
                sums = Sums()
                sums.add_file(Path(file.name))
                if sums.sha256 == path.name:
                    settle(file, path)
                    return True
        log.error("the bucket has lost or damaged the object %s", key)
        with self._lock:
            self._keys.pop(path.name, None)  # so that `add` stores it again
        return False

    def remove(self, names: Iterable[str]) -> None:
        with self._lock:
            doomed = [key for name in names if (key := self._keys.pop(name, ""))]
        self._delete(doomed)

    def clean_up(self) -> None:
        if self._left:
            log.info("%d objects in the bucket were left by the last stop, and are deleted", len(self._left))
        self._delete(self._left)
        self._left = []

    def close(self) -> None:
        self._deleting.shutdown(cancel_futures=True)
        self._bucket.close()

    def _delete(self, keys: Sequence[str]) -> None:
        """Delete objects at leisure. What is still there when this server ends, the next start deletes."""
        if keys:
            self._deleting.submit(self._try_to_delete, keys)

    def _try_to_delete(self, keys: Sequence[str]) -> None:
        try:
            self._bucket.delete(keys)
        except BucketAway as away:
            log.warning("%d objects that are not needed stay until the next start: %s", len(keys), away)


def newest(found: Iterable[str]) -> dict[str, str]:
    """The object of each blob that counts, among these keys: the last one of the last term."""
    best: dict[str, tuple[int, int, str]] = {}
    for key in found:
        if match := KEY.fullmatch(key):
            rank = int(match["term"]), int(match["number"]), key
            best[match["name"]] = max(best.get(match["name"], rank), rank)
    return {name: key for name, (_, _, key) in best.items()}
