"""The folder `software` of a device: releases, each with the statement that is signed, and which one runs.

standing.json                      what runs and what is on trial; see `fedclient.software.standing`
shoal-0.3.1.release                what the maker has signed of a release
shoal_fed-0.3.1-py3-none-any.whl   its wheel
0.3.1/                             the same, unpacked, which is where Python finds it
lock                               held by the process that starts a release

A release is checked whenever it is started: the statement by its signature, the wheel by the statement, and
every unpacked file by the wheel. So nothing here has to be synced but the first three.
"""

import io
import json
import os
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fedclient.config import ClientConfig
from fedclient.software.standing import Standing, from_json
from fedclient.store.state import read_json
from shoal import __version__
from shoal.core.errors import BadPayload, ConfigError
from shoal.core.identity.release import LARGEST, LONGEST, MAKER, Release, public_key, read
from shoal.shell import crash, disk

NAME, STANDING = "software", "standing.json"
FETCHED_AGAIN = "it is fetched again"


class SoftwareFolder:
    """root: the folder. key: whose releases are started."""

    def __init__(self, root: Path, key: Ed25519PublicKey) -> None:
        self.root, self._key = root, key

    @contextmanager
    def locked(self) -> Iterator[None]:
        """For the process that decides what is started. Raises ConfigError if there is another one."""
        with disk.storing(self.root):
            disk.make_folder(self.root)
            file = disk.lock(self.root / "lock")
        with file:
            yield

    def standing(self) -> Standing:
        return from_json(read_json(self.root / STANDING))

    def note(self, standing: Standing) -> None:
        """On return it survives a crash and a power cut. Raises StorageFault."""
        disk.write(self.root / STANDING, json.dumps(asdict(standing)).encode())

    def read(self, statement: bytes) -> Release:
        """Raises BadPayload unless the owner trusts who has signed it."""
        return read(statement, self._key)

    def keep(self, release: Release, statement: bytes, wheel: bytes) -> None:
        """Store a release that was checked, which is on trial from then on. Raises StorageFault."""
        disk.write(self.root / release.wheel, wheel)
        crash.point("device.wheel-kept")
        disk.write(self._statement(release.version), statement)
        self.note(self.standing().arrived(release.version))
        crash.point("device.release-arrived")

    def opened(self, version: str) -> Path:
        """Where Python finds this release, checked down to the last file, for the process that has the lock.

        Raises BadPayload if it is not here as its maker has signed it, and StorageFault.
        """
        with self._archive(version) as archive:
            path = self.root / version
            if not _is_unpacked(archive, path):
                self._unpack(archive, path)
        return path

    def as_it_is(self, version: str) -> Path | None:
        """The same, and nothing is changed; None if something is wrong with it."""
        try:
            with self._archive(version) as archive:
                path = self.root / version
                return path if _is_unpacked(archive, path) else None
        except BadPayload:
            return None

    @contextmanager
    def _archive(self, version: str) -> Iterator[zipfile.ZipFile]:
        release = self.read(_bytes(self._statement(version), LONGEST))
        if release.version != version:
            raise BadPayload(f"{self._statement(version)} is of version {release.version}", FETCHED_AGAIN)
        wheel = _bytes(self.root / release.wheel, LARGEST)
        release.check(wheel)
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
            yield archive

    def tidy(self) -> None:
        """Remove releases that are not needed, and what a crash has left."""
        needed = self.standing().needed() | {__version__}
        kept = {STANDING, "lock", *needed}
        for version in needed:
            kept |= {self._statement(version).name, Release(version, "0" * 64, 1).wheel}
        with disk.storing(self.root):
            for path in self.root.glob("*"):
                if path.name in kept:
                    continue
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()

    def is_running(self) -> bool:
        """Whether this process runs one of these releases, and not the installed package."""
        return Path(__file__).resolve().is_relative_to(self.root.resolve())

    def is_ours(self) -> bool:
        """Whether no one else than the user of this process has written here. An administrator who looks
        after a device does not run what the device's user could have changed."""
        with suppress(OSError):
            return self.root.stat().st_uid == os.geteuid()
        return False

    def _statement(self, version: str) -> Path:
        return self.root / f"shoal-{version}.release"

    def _unpack(self, archive: zipfile.ZipFile, path: Path) -> None:
        scratch = self.root / f"{disk.TEMPORARY}{path.name}"
        with disk.storing(path):
            for former in (scratch, path):
                if former.exists():
                    shutil.rmtree(former)
            archive.extractall(scratch)
            crash.point("device.release-unpacked")
            scratch.rename(path)


def _bytes(path: Path, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(most + 1)
    except OSError as error:
        raise BadPayload(f"{path}: {error.strerror}", FETCHED_AGAIN) from None


def _is_unpacked(archive: zipfile.ZipFile, path: Path) -> bool:
    for name in archive.namelist():
        if not name.endswith("/"):
            try:
                if (path / name).read_bytes() != archive.read(name):
                    return False
            except OSError:
                return False
    return True


def standing_of(settings: ClientConfig) -> Standing:
    """What is stored of the releases of this device."""
    return from_json(read_json(settings.state / NAME / STANDING))


def folder_of(settings: ClientConfig) -> SoftwareFolder | None:
    """None if the owner does not allow updates. Raises ConfigError for a key that is none."""
    if settings.updates is None:
        return None
    pem, path = MAKER, settings.updates.key
    if path is not None:
        try:
            pem = path.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"{path}: {error.strerror}", "updates.key is a file with a public key"
            ) from None
    return SoftwareFolder(settings.state / NAME, public_key(pem))
