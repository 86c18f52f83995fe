"""Read files into arrays: on a device, in the simulator, and for the papers' tables.

Nothing in a file is trusted or run; a DataFault names the file and has a hint.

    arrays   npz and idx files      tables   csv and parquet      images   folders and archives of pictures
"""

from pathlib import Path

from shoal.shell.readers.arrays import Arrays, read_idx, read_npz
from shoal.shell.readers.images import numbered, read_images, read_numbered
from shoal.shell.readers.tables import columns_of, read_csv, read_parquet

__all__ = [
    "Arrays",
    "columns_of",
    "kind_of",
    "numbered",
    "read_csv",
    "read_idx",
    "read_images",
    "read_npz",
    "read_numbered",
    "read_parquet",
]

ENDINGS = {
    ".npz": "npz",
    ".csv": "csv",
    ".parquet": "parquet",
    ".tar": "images",
    ".tgz": "images",
    ".gz": "images",
    ".xz": "images",
    ".bz2": "images",
}


def kind_of(path: Path) -> str:
    """How a file is read, by its ending: npz, csv, parquet or images; "" if the ending says nothing.

    A folder, and an archive of one, is of images. A single compressed idx file is not an archive.
    """
    if path.is_dir():
        return "images"
    archive = path.suffixes[-2:-1] == [".tar"] or path.suffix.lower() in (".tar", ".tgz")
    found = ENDINGS.get(path.suffix.lower(), "")
    return found if found != "images" or archive else ""
