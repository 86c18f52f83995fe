"""A folder of blobs that several servers reach, while only one of them may change it.

A database knows whose session it is; a folder does not. A server that was stopped for a minute, and has lost
the database meanwhile, could still delete the file that it was about to delete. So each server that becomes
the leader renames the folder: what an earlier one tries then, it tries in a folder that is not there.

The names are in the database. The newest one that exists, with the mark in it, is the folder: a name is
written down before it is used, and a leader that stops in between has changed nothing. Uploads that were not
complete are dropped, since a server that wakes up may still have their files open; devices repeat them.
"""

import secrets
from pathlib import Path

from fedserver.store.database import Database
from shoal.core.errors import ConfigError
from shoal.shell import crash, disk

MARK = "shoal-blobs"
"""A file in the folder. An earlier leader that writes to a former name may create folders, but never this."""
NAMES = (
    "CREATE TABLE IF NOT EXISTS blob_folders (name TEXT NOT NULL, rowid BIGINT GENERATED ALWAYS AS IDENTITY)"
)


def claim(shared: Path, database: Database) -> Path:
    """The folder of blobs in `shared`, under a name that only this process and the database know.

    Raises ConfigError if the database refers to blobs and `shared` has no folder of theirs.
    """
    folder = shared / f"blobs-{secrets.token_hex(8)}"
    with database.transaction():
        database.execute(NAMES)
        known = [name for (name,) in database.query("SELECT name FROM blob_folders ORDER BY rowid DESC")]
        database.execute("INSERT INTO blob_folders (name) VALUES (?)", (folder.name,))
    crash.point("server.folder-named")
    with disk.storing(shared):
        former = next((shared / name for name in known if (shared / name / MARK).is_file()), None)
        if former is not None:
            disk.move(former, folder)
        elif database.query("SELECT 1 FROM needed_blobs LIMIT 1"):
            raise ConfigError(
                f"{shared} has none of the folders that the database names: {', '.join(known) or 'none'}",
                "give the folder that the other servers of this database use, with `blobs` in the settings",
            )
        else:
            disk.make_folder(folder)
            disk.write(folder / MARK, b"")
        for upload in (folder / "partial").glob("*/*.part"):
            upload.unlink()
    with database.transaction():
        database.execute("DELETE FROM blob_folders WHERE name != ?", (folder.name,))
    return folder


def is_claimed(folder: Path) -> bool:
    """Whether a folder is still the one, under the name that `claim` gave it."""
    return (folder / MARK).is_file()
