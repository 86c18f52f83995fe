"""What a release needs and this device lacks: an update brings no other package."""

import io
import sys
import zipfile
from email import message_from_bytes
from importlib import metadata

from shoal.core.errors import BadPayload

DISTRIBUTION = "shoal-fed"


def lacking(metadata_of_wheel: bytes, extra: str) -> list[str]:
    """The requirements of a wheel that what is installed here does not meet. Raises BadPayload.

    metadata_of_wheel: see `metadata_in`. extra: the one that this device uses. What the release that runs
    requires, too, was met when it was installed.
    """
    found = message_from_bytes(metadata_of_wheel)
    if found["Name"] != DISTRIBUTION:
        raise BadPayload(f"the wheel is of {found['Name']}", "ask its maker")
    present = metadata.requires(DISTRIBUTION) or []
    missing = [each for each in found.get_all("Requires-Dist") or [] if each not in present]
    return [each for each in missing if not _is_met(each, extra)] + _of_python(found["Requires-Python"] or "")


def metadata_in(wheel: bytes) -> bytes:
    """What a wheel says of itself, among which its requirements. Raises BadPayload."""
    try:
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
            (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
            return archive.read(name)
    except (zipfile.BadZipFile, ValueError):
        raise BadPayload("the wheel of a release is not a wheel", "ask its maker") from None


def _is_met(text: str, extra: str) -> bool:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return False
    needed = requirement.marker is None or any(
        requirement.marker.evaluate({"extra": each}) for each in ("", extra)
    )
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return not needed
    return not needed or requirement.specifier.contains(version, prereleases=True)


def _of_python(specifier: str) -> list[str]:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    present = ".".join(map(str, sys.version_info[:3]))
    try:
        is_met = SpecifierSet(specifier).contains(present, prereleases=True)
    except InvalidSpecifier:
        is_met = False
    return [] if is_met else [f"Python {specifier}"]
