"""Images in a folder, or in a tar archive of one: a folder for each class, and the pictures in it.

    train/cat/0001.jpg    train/dog/0001.png    ...    the part "train" of two classes

Pictures that stand directly in the folder have no class. Links to folders and pictures are followed. An
archive is read and never unpacked, and links in it are refused. Formats are those of `FORMATS`; what Pillow
cannot read as one of them is a DataFault, and so is what the user may not read.
"""

import io
import lzma
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from shoal.core.data.labels import to_list
from shoal.core.errors import DataFault, near
from shoal.core.types import Array
from shoal.shell.readers.arrays import Arrays
from shoal.shell.readers.folders import files_below, readable

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".bmp": "BMP", ".pgm": "PPM", ".ppm": "PPM"}
MAX_PIXELS = 1 << 26
"""Of one picture: a larger one is refused before it is unpacked in memory."""
SHOWN = 8
"""Classes that an error lists."""


Pictures = Sequence[tuple[PurePosixPath, bytes]]
"""Names below some folder, and the bytes of the files."""


def read_images(path: Path, part: str = "", shape: Sequence[int] = ()) -> tuple[Array, list[str] | None]:
    """x (n, h, w) or (n, 3, h, w) uint8, in the order of their names, and the name of each picture's class;
    None where pictures stand without folders.

    part: the folder, such as "train", in which the classes' folders stand. shape: (channels, height, width),
    with 1 or 3 channels, into which pictures are brought; by default they have to be of one size, and gray
    ones stay gray. Raises DataFault, and OSError as `open` does.
    """
    found = pictures(path)
    return decoded(path, within(found, part) if part else found, shape)


def pictures(path: Path) -> Pictures:
    """All pictures below a folder, or in an archive, which is read once."""
    return sorted(_folder(path) if path.is_dir() else _archive(path), key=lambda each: each[0].parts)


def within(found: Pictures, part: str) -> Pictures:
    """Those in the folder `part`, by their names below it."""
    return [(PurePosixPath(*name.parts[1:]), data) for name, data in found if name.parts[0] == part]


def decoded(path: Path, found: Pictures, shape: Sequence[int] = ()) -> tuple[Array, list[str] | None]:
    """What `read_images` gives, of these pictures."""
    if shape and (len(shape) != 3 or shape[0] not in (1, 3)):
        raise DataFault(
            f"{path}: pictures cannot have the shape {list(shape)}", "set shape: [3, height, width]"
        )
    if not found:
        raise DataFault(
            f"{path} has no pictures", f"they end in {', '.join(FORMATS)}, in a folder for each class"
        )
    depths = {len(name.parts) for name, _ in found}
    if len(depths) > 1 or max(depths) > 2:
        deep = max((name for name, _ in found), key=lambda name: len(name.parts))
        raise DataFault(
            f"{path}: {deep} is in more folders than other pictures, or than one",
            "pictures stand in one folder for each class, or all in one folder without classes",
        )
    images = [_pixels(path, name, data, shape) for name, data in found]
    for (name, _), image in zip(found, images, strict=True):
        if image.shape != images[0].shape:
            raise DataFault(
                f"{path}: {name} has shape {list(image.shape)}, and {found[0][0]} has "
                f"{list(images[0].shape)}",
                "set shape: [3, height, width], and pictures are brought into it",
            )
    classes = [name.parts[0] for name, _ in found] if depths == {2} else None
    return np.stack(images), classes


def numbered(path: Path, names: Sequence[str] | None, classes: Sequence[str] = ()) -> Array | None:
    """The number of each picture's class: its place in `classes`, or the number that its folder is named by.

    Devices must not number words by themselves: two devices that lack different classes would number the
    same words differently. Raises DataFault for a class that is not in `classes`, or that is a word.
    """
    if names is None:
        return None
    for name in dict.fromkeys(names):
        if classes and name not in classes:
            known = ", ".join(classes[:SHOWN])
            hint = near(name, list(classes)) if len(classes) <= SHOWN else f"known: {known} ..."
            raise DataFault(f"{path}: the class {name!r} is not in data.classes", hint)
        if not classes and not (name.isascii() and name.isdecimal()):
            raise DataFault(f"{path}: the folder {name!r} is not a number", to_list(sorted({*names})))
    if not classes:
        return np.array([int(name) for name in names])
    place = {name: number for number, name in enumerate(classes)}
    return np.array([place[name] for name in names])


def read_numbered(path: Path, shape: Sequence[int] = (), classes: Sequence[str] = ()) -> Arrays:
    """Pictures and the numbers of their classes. Raises what the two functions above raise."""
    x, names = read_images(path, "", shape)
    return x, numbered(path, names, classes)


def _folder(path: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    for name, file in files_below(path):
        if name.suffix.lower() in FORMATS:
            with readable(file):
                data = file.read_bytes()
            yield name, data


def _archive(path: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    try:
        with tarfile.open(path, "r|*") as archive:
            for member in archive:
                name = PurePosixPath(member.name)
                picture = name.suffix.lower() in FORMATS
                if member.issym() or (member.islnk() and picture):
                    raise DataFault(
                        f"{path}: {name} is a link to {member.linkname}, and such links are not followed",
                        "pack what links lead to: tar --dereference --hard-dereference",
                    )
                if member.isfile() and picture and (file := archive.extractfile(member)):
                    yield PurePosixPath(*(each for each in name.parts if each not in (".", "/"))), file.read()
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
        raise DataFault(f"{path} is not a whole archive: {error}", "copy or save it again") from None


def _pixels(path: Path, name: PurePosixPath, data: bytes, shape: Sequence[int]) -> Array:
    """(h, w) or (3, h, w) uint8."""
    try:
        from PIL import Image
    except ImportError:
        raise DataFault(f"{path} has pictures, and Pillow is not installed", "pip install pillow") from None
    try:
        with Image.open(io.BytesIO(data), formats=[FORMATS[name.suffix.lower()]]) as image:
            if image.width * image.height > MAX_PIXELS:
                raise DataFault(
                    f"{path}: {name} has {image.width} x {image.height} pixels", "make it smaller first"
                )
            if image.mode.startswith("I"):  # Pillow would make 255 of all above it, such as of a whole X-ray
                raise DataFault(
                    f"{path}: {name} has more than 8 bits a pixel",
                    "save it with 8, or give arrays, which have any numbers: an npz file",
                )
            gray = shape[0] == 1 if shape else image.mode in ("1", "L")
            found = image.convert("L" if gray else "RGB")
            if shape and (found.height, found.width) != (shape[1], shape[2]):
                found = found.resize((shape[2], shape[1]), Image.Resampling.BILINEAR)
            pixels: Array = np.asarray(found, np.uint8)
    except DataFault:
        raise
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        if type(error).__name__ == "UnidentifiedImageError":  # its text names our buffer, and no file
            error = ValueError(f"it is no {FORMATS[name.suffix.lower()]} file")
        raise DataFault(f"{path}: {name} is not a picture: {error}", "remove it, or save it again") from None
    if not gray:
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))
    return pixels[None] if shape else pixels
