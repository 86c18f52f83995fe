"""One's own devices for `fedserver simulate`: a file, or a folder or archive of pictures, for each."""

import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.core.data import arrays
from shoal.core.data.labels import listed
from shoal.core.errors import ConfigError, DataFault

if TYPE_CHECKING:
    from shoal.simulation.fleet import Fleet


def fleet_of(pattern: str, label: str | None, test: float, regression: bool = False) -> "Fleet":
    """The devices in the files of a pattern, named as the files are. Raises ConfigError and DataFault.

    Classes that are words, such as the names of folders of pictures, are numbered over all devices: see
    `Fleet`.
    """
    from shoal.shell.readers import columns_of, kind_of
    from shoal.simulation.fleet import Fleet

    paths = [Path(found) for found in sorted({*glob.glob(pattern, recursive=True)})]
    if not paths:
        raise ConfigError(f"no file is named like {pattern!r}", "quote the pattern: --data 'devices/*.npz'")
    devices: dict[str, Any] = {}
    first: tuple[Path, list[str]] | None = None
    for path, name in zip(paths, _names(paths), strict=True):
        try:
            if kind_of(path) == "images":
                devices[name] = _images(path, alone=len(paths) == 1)
            else:
                devices[name] = _arrays(path, label, not regression)
                if (kind := kind_of(path)) in ("csv", "parquet"):
                    found = [each for each in columns_of(path, kind) if each != label]
                    first = first or (path, found)
                    arrays.check_order(
                        str(path),
                        found,
                        str(first[0]),
                        first[1],
                        "write the columns of all files in one order",
                    )
        except OSError as error:
            raise DataFault(f"{path}: {error.strerror or error}", "give files to read") from None
    return Fleet(dict(sorted(devices.items())), test=test, regression=regression)


def _names(paths: list[Path]) -> list[str]:
    """What the devices are called: short where that tells them apart, and it does not where each has a folder
    of its own, say, or files of two kinds."""
    short = [path.name if path.is_dir() else path.stem.removesuffix(".tar") for path in paths]
    longer = [str(path.parent / name) for path, name in zip(paths, short, strict=True)]
    known = (short, longer, [str(path) for path in paths])
    return next(names for names in known if len({*names}) == len(paths))


def _images(path: Path, alone: bool) -> tuple[Any, ...]:
    from shoal.shell.readers import read_images

    try:
        return read_images(path)
    except DataFault as fault:
        if not alone or path.is_file():
            raise
        hint = f"{fault.hint}; where each device has a folder of its own in it: --data '{path}/*'"
        raise DataFault(fault.message, hint) from None


def _arrays(path: Path, label: str | None, words: bool) -> tuple[Any, ...]:
    """x and y, and a test part if the file has one. words: whether labels may be words."""
    from shoal.shell.readers import columns_of, kind_of, read_csv, read_npz, read_parquet

    if (kind := kind_of(path)) in ("csv", "parquet"):
        if label is None:
            # A parquet file needs a package to be read.
            names = columns_of(path, kind) if kind == "csv" else []
            has = f"; it has {listed(reversed(names))}" if names else ""
            raise ConfigError(f"{path} is a {kind} file", f"name its column of classes: --label COLUMN{has}")
        return (read_csv if kind == "csv" else read_parquet)(path, label, True, words=words)
    own, apart = read_npz(path), read_npz(path, "x_test", "y_test")
    if own is None or own[1] is None:
        missing = "x" if own is None else "y"
        raise DataFault(f"{path} has no array {missing}", "save it with numpy.savez(path, x=..., y=...)")
    return (*own, *(apart or ()))
