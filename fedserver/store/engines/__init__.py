"""The two databases that a store can be in: SQLite in the state folder, or PostgreSQL.

sqlite     the file shoal.db: the default; every row has a checksum and a second copy
schema     the tables of both, and their version

`fedserver.ha` has PostgreSQL, and the blobs that several servers reach.
"""

from dataclasses import dataclass
from pathlib import Path

from fedserver.ha.blob_folder import claim
from fedserver.ha.bucket import SCHEME, BucketAddress
from fedserver.ha.bucket_term import begin_term
from fedserver.store.content.blobs import Blobs
from fedserver.store.database import Database
from fedserver.store.engines.sqlite import SqliteDatabase
from shoal.core.errors import ConfigError

FILE = "shoal.db"


@dataclass(frozen=True)
class Elsewhere:
    """Where a store is that is not in its state folder. database: postgresql://USER@HOST/NAME.

    blobs: a folder that every server of this database reaches under some path, or a bucket.
    """

    database: str
    blobs: Path | BucketAddress


def place(text: str, folder: Path) -> Path | BucketAddress:
    """Where the blobs are, as settings say it. folder: for a relative path. Raises ConfigError."""
    return BucketAddress.parse(text) if text.startswith(SCHEME) else folder / text


def open_blobs(state: Path, database: Database, elsewhere: Elsewhere | None = None) -> Blobs:
    """The blobs of a database, for the server that leads. Raises ConfigError, and StorageFault."""
    if elsewhere is None:
        return Blobs(state)
    if isinstance(elsewhere.blobs, BucketAddress):
        return Blobs(state, begin_term(elsewhere.blobs, database, state / "tmp"))
    return Blobs(claim(elsewhere.blobs, database))


def open_database(state: Path, url: str = "") -> Database:
    """Open the database at `url`, or the file in the state folder if there is none.

    Raises ConfigError, NotLeader while another server uses the database, and StorageFault.
    """
    if not url:
        return SqliteDatabase(state / FILE)
    try:
        from fedserver.ha.postgresql import PostgresqlDatabase
    except ModuleNotFoundError:
        raise ConfigError(
            "the package psycopg is not installed, which a PostgreSQL database needs",
            "pip install 'psycopg[binary]'",
        ) from None
    return PostgresqlDatabase(url)
