"""A leader's term in a bucket of blobs: a number from the database, which no other leader has.

See `fedserver.ha.bucket_copies`, which says what the number is for.
"""

import secrets
from pathlib import Path

from fedserver.ha.bucket import Bucket, BucketAddress
from fedserver.ha.bucket_copies import BucketCopies, newest
from fedserver.store.database import Database
from shoal.core.errors import ConfigError

TERMS = "CREATE TABLE IF NOT EXISTS bucket_terms (store TEXT NOT NULL, term BIGINT NOT NULL)"


def begin_term(address: BucketAddress, database: Database, tmp: Path) -> BucketCopies:
    """The blobs of this database in a bucket, for a server that has begun to lead.

    Raises BucketAway, and ConfigError if the database refers to blobs and the bucket has none of them.
    """
    bucket = Bucket(address)
    try:
        with database.transaction():
            database.execute(TERMS)
            ((store, term),) = database.query(
                "SELECT coalesce(max(store), ''), coalesce(max(term), 0) + 1 FROM bucket_terms"
            )
            # Two databases may use the same bucket and the same prefix: each has a name there.
            store = store or secrets.token_hex(8)
            database.execute("INSERT INTO bucket_terms (store, term) VALUES (?, ?)", (store, term))
            database.execute("DELETE FROM bucket_terms WHERE term < ?", (term,))
        found = bucket.keys(f"{store}/")
        # In this order: if this session can still read, no other server led while the list was made. So what
        # is on the list and not needed now was left behind, and is not of a server that leads by now.
        needed = {name for (name,) in database.query("SELECT sha256 FROM needed_blobs")}
        if needed and needed.isdisjoint(newest(found)):
            raise ConfigError(
                f"the bucket {address} has none of the blobs that the database needs",
                "give the bucket and the prefix that the other servers of this database use",
            )
    except BaseException:
        bucket.close()
        raise
    return BucketCopies(bucket, store, term, found, needed, tmp)
