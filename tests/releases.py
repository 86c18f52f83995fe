"""Releases of this software as a maker publishes them, made of the sources that are tested."""

import hashlib
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

import shoal
from shoal.core.identity.release import Release, numbers

ROOT = Path(shoal.__file__).parents[1]
INIT = "shoal/__init__.py"
NOW = numbers(shoal.__version__)
PATCH, MINOR, SKIPPING = (
    f"{NOW[0]}.{NOW[1]}.{NOW[2] + 7}",
    f"{NOW[0]}.{NOW[1] + 1}.0",
    f"{NOW[0]}.{NOW[1] + 2}.0",
)
"""Versions after this one: of its series, the next one, and one that would skip that."""
Changes = Mapping[str, tuple[str, str]]


def wheel(version: str, changes: Changes | None = None, needs: str = "click>=8.1") -> bytes:
    """A wheel of this version. changes: of a file, what is replaced by what. needs: a requirement."""
    changed = {INIT: (f'"{shoal.__version__}"', f'"{version}"'), **(changes or {})}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in sources().items():
            former, new = changed.pop(name, ("", ""))
            assert former in text, name
            archive.writestr(name, text.replace(former, new) if former else text)
        assert not changed
        archive.writestr(
            f"shoal_fed-{version}.dist-info/METADATA",
            f"Name: shoal-fed\nVersion: {version}\nRequires-Python: >=3.11\nRequires-Dist: {needs}\n",
        )
    return file.getvalue()


@cache
def sources() -> Mapping[str, str]:
    """What a device needs of this project, by the names that a wheel has for it."""
    packages = (ROOT / "shoal", ROOT / "fedclient")
    found = (path for package in packages for path in sorted(package.rglob("*.py")))
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in found}


@dataclass
class Maker:
    """Who publishes releases, in a folder that is created."""

    folder: Path
    key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        pem = self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        self.public.write_bytes(pem)

    @property
    def public(self) -> Path:
        """The file with the public key."""
        return self.folder / "maker.pem"

    @property
    def setting(self) -> str:
        """What an owner writes into the settings."""
        return f"updates: {{source: {self.folder}, key: {self.public}}}\n"

    def publish(self, version: str, changes: Changes | None = None, needs: str = "click>=8.1") -> Release:
        """See `wheel`. The statement comes last, as it should."""
        content = wheel(version, changes, needs)
        release = Release(version, hashlib.sha256(content).hexdigest(), len(content))
        (self.folder / release.wheel).write_bytes(content)
        (self.folder / release.statement).write_bytes(release.signed(self.key))
        return release
