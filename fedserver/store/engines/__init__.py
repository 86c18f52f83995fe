"""The two databases that a store can be in: SQLite in the state folder, or PostgreSQL.

sqlite         the file shoal.db: the default; every row has a checksum and a second copy
postgresql     a database on a server of its own, whose session is the right to write
blob_folder    the folder of blobs that several servers reach, and whose turn it is to change it
schema         the tables of both, as a list of steps; `translation` has PostgreSQL's words for them
"""

from dataclasses import dataclass
from pathlib import Path

from fedserver.store.database import Database
from fedserver.store.engines.sqlite import SqliteDatabase
from shoal.core.errors import ConfigError

FILE = "shoal.db"


@dataclass(frozen=True)
class Elsewhere:
    """Where a store is that is not in its state folder. database: postgresql://USER@HOST/NAME.

    blobs: a folder that every server of this database reaches under some path.
    """

    database: str
    blobs: Path


def open_database(state: Path, url: str = "") -> Database:
    """Open the database at `url`, or the file in the state folder if there is none.

    Raises ConfigError, NotLeader while another server uses the database, and StorageFault.
    """
    if not url:
        return SqliteDatabase(state / FILE)
    try:
        from fedserver.store.engines.postgresql import PostgresqlDatabase
    except ModuleNotFoundError:
        raise ConfigError(
            "the package psycopg is not installed, which a PostgreSQL database needs",
            "install it with: pip install 'shoal-fed[postgres]'",
        ) from None
    return PostgresqlDatabase(url)
