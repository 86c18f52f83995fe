"""The device's identity on its disk: complete or absent, and readable only by its owner.

identity.json   key, certificate, the server's certificate, and where the server is
asking.json     a new key and its certificate request, until the answer is in the other file
"""

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shoal.core.errors import BadPayload, ConfigError, StorageFault
from shoal.core.identity import certificates as certs
from shoal.core.identity import succession
from shoal.core.identity.joining import IssuedIdentity, Role
from shoal.core.types import DeviceId
from shoal.shell.disk import storing, sync_folder, write

JOIN_AGAIN = (
    "type `fedclient leave`, ask for a new join string, and join again under the same name: "
    "fedclient join STRING --device NAME"
)
"""The operator then approves that the new key takes the place of the one that was lost."""

PEM = ("key", "certificate", "authority")
"""The fields of an identity that are in PEM, as they are in the file."""


@dataclass(frozen=True)
class JoiningPort:
    """Where EnrollmentService listens, and the SHA-256 of the server's key."""

    host: str
    port: int
    pin: bytes

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Identity:
    """key, certificate: PEM. authority: the server's certificate, PEM. address: where the server is called,
    "host:port".

    addresses: all that the server named at the last hello; empty if it is the only one.
    """

    key: bytes = field(repr=False)
    certificate: bytes
    authority: bytes
    federation: str
    device: DeviceId
    role: Role
    address: str
    joining_port: JoiningPort
    addresses: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the device's key, as people compare it."""
        return fingerprint_of(self.key)

    def facts(self) -> dict[str, Any]:
        """For programs, without the key."""
        return {
            "device": self.device,
            "federation": self.federation,
            "role": self.role.value,
            "server": self.address,
            "fingerprint": self.fingerprint,
        }


@dataclass(frozen=True)
class Asking:
    """A key (PEM) and its certificate request (PKCS #10, DER), which stays the same until it is answered."""

    key: bytes = field(repr=False)
    csr: bytes


def fingerprint_of(key: bytes) -> str:
    return certs.fingerprint(certs.pin_of(certs.key_from_pem(key).public_key()))


def identity_of(asking: Asking, issued: IssuedIdentity, joining_port: JoiningPort) -> Identity:
    """The identity that an answer makes of a request. Raises BadPayload if it answers another request."""
    certificate = certs.certificate(issued.certificate)
    named = certs.named_by(certificate)
    if certificate.public_key() != certs.key_from_pem(asking.key).public_key():
        raise BadPayload("the server sent a certificate for another key", "update the server")
    if (named.federation, named.name) != (issued.federation, issued.device):
        raise BadPayload("the server's certificate names another device than its answer", "update the server")
    if not succession.leads(joining_port.pin, certs.certificate(issued.authority)):
        raise BadPayload("the server sent a certificate for a key that is not its own", "update the server")
    there = replace(joining_port, pin=certs.pin_of(certs.certificate(issued.authority).public_key()))
    return Identity(asking.key, **vars(issued), joining_port=there)


class Keyring:
    """The folder `folder`. One process works in it at a time: see `DeviceFolder.locked`."""

    def __init__(self, folder: Path) -> None:
        self._identity, self._asking = folder / "identity.json", folder / "asking.json"

    def identity(self) -> Identity | None:
        """The identity, or None if the device has not joined. Raises ConfigError if others can read the
        key.
        """
        found = _read(self._identity)
        if found is None:
            return None
        try:
            port = found["joining_port"]
            identity = Identity(
                **{name: found[name].encode() for name in PEM},
                **{name: found[name] for name in ("federation", "device", "address")},
                role=Role(found["role"]),
                joining_port=JoiningPort(port["host"], port["port"], bytes.fromhex(port["pin"])),
                addresses=tuple(map(str, found["addresses"])),
            )
            own = certs.certificate(identity.certificate).public_key()
            if own != certs.key_from_pem(identity.key).public_key():
                raise ValueError("key and certificate do not belong together")
        except (KeyError, TypeError, AttributeError, ValueError, BadPayload) as error:
            raise StorageFault(f"{self._identity} is damaged: {error}", JOIN_AGAIN) from None
        return identity

    def unanswered(self) -> Asking | None:
        """The request without an answer yet."""
        found = _read(self._asking)
        if found is not None:
            try:
                asking = Asking(found["key"].encode(), bytes.fromhex(found["csr"]))
                certs.key_of_request(asking.csr)
                return None if self._is_answered(asking) else asking
            except (KeyError, TypeError, AttributeError, ValueError, BadPayload):
                pass  # nothing depends on it
        return None

    def asking(self) -> Asking:
        """The request without an answer yet, or a new one. On return it is on the disk."""
        if (found := self.unanswered()) is not None:
            return found
        key = certs.new_key()
        asking = Asking(certs.key_to_pem(key), certs.request(key))
        self._write(self._asking, {"key": asking.key.decode(), "csr": asking.csr.hex()})
        return asking

    def keep(self, identity: Identity) -> None:
        """Replace the identity. On return the new one is on the disk. Raises StorageFault."""
        port = identity.joining_port
        texts = {name: getattr(identity, name).decode() for name in PEM}
        others = {"role": identity.role.value, "joining_port": {**vars(port), "pin": port.pin.hex()}}
        self._write(self._identity, {**vars(identity), **texts, **others})
        with storing(self._asking):
            self._asking.unlink(missing_ok=True)
            sync_folder(self._asking.parent)

    def _is_answered(self, asking: Asking) -> bool:
        """Whether the identity already has this key: the process ended before it could delete the request."""
        found = _read(self._identity)
        return found is not None and found.get("key") == asking.key.decode()

    def _write(self, path: Path, content: Mapping[str, Any]) -> None:
        write(path, json.dumps(content, indent=1).encode(), mode=0o600)


def _read(path: Path) -> dict[str, Any] | None:
    """The content of a file with a key. Raises ConfigError if others can read it."""
    try:
        with storing(path), path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise ConfigError(
                    f"{path}: the private key is readable by other users (mode {mode:04o})",
                    f"chmod 600 {path}; if someone may have read it, have the device revoked and join again",
                )
            found = json.load(file)
    except StorageFault as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
