"""One's own devices for `fedserver simulate`: a file, or a folder or archive of pictures, for each."""

import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.core.errors import ConfigError, DataFault

if TYPE_CHECKING:
    from shoal.simulation.fleet import Fleet


def fleet_of(
    pattern: str, label: str | None, test: float, held_out: float = 0.2, regression: bool = False
) -> "Fleet":
    """The devices in the files of a pattern, named as the files are. Raises ConfigError and DataFault.

    The classes of pictures are numbered in the order of their names, over all devices; names that are
    numbers stay what they are.
    """
    from shoal.shell.readers import kind_of, numbered, read_images
    from shoal.simulation.fleet import Fleet

    paths = [Path(found) for found in sorted(glob.glob(pattern, recursive=True))]
    if not paths:
        raise ConfigError(f"no file is named like {pattern!r}", "quote the pattern: --data 'devices/*.npz'")
    same = len({path.stem for path in paths}) < len(paths)  # a folder for each device, say
    devices: dict[str, Any] = {}
    pictures: dict[str, tuple[Path, Any, list[str] | None]] = {}
    for path in paths:
        short = path.name if path.is_dir() else path.stem.removesuffix(".tar")
        name = str(path.with_suffix("")) if same else short
        try:
            if kind_of(path) == "images":
                pictures[name] = (path, *read_images(path))
            else:
                devices[name] = _arrays(path, label)
        except OSError as error:
            raise DataFault(f"{path}: {error.strerror or error}", "give files to read") from None
    words = {word for _, _, names in pictures.values() for word in names or ()}
    classes = [] if all(word.isascii() and word.isdecimal() for word in words) else sorted(words)
    devices |= {name: (x, numbered(path, names, classes)) for name, (path, x, names) in pictures.items()}
    return Fleet(dict(sorted(devices.items())), test=test, held_out=held_out, regression=regression)


def _arrays(path: Path, label: str | None) -> tuple[Any, ...]:
    """x and y, and a test part if the file has one."""
    from shoal.shell.readers import kind_of, read_csv, read_npz, read_parquet

    if (kind := kind_of(path)) in ("csv", "parquet"):
        if label is None:
            raise ConfigError(f"{path} is a {kind} file", "name its column of classes: --label COLUMN")
        return (read_csv if kind == "csv" else read_parquet)(path, label, True)
    own, apart = read_npz(path), read_npz(path, "x_test", "y_test")
    if own is None or own[1] is None:
        missing = "x" if own is None else "y"
        raise DataFault(f"{path} has no array {missing}", "save it with numpy.savez(path, x=..., y=...)")
    return (*own, *(apart or ()))
