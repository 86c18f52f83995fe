"""The device's identity on its disk: whole or not there, and for its owner's eyes alone.

identity.json   key, certificate, authorities, and where to ask for the next certificate
asking.json     a new key and its request for a certificate, while the answer is not in the other file
"""

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography import x509

from shoal.core.errors import BadPayload, ConfigError, StorageFault
from shoal.core.identity import certificates as certs
from shoal.core.identity.enrolled import Enrolled, Role
from shoal.core.types import DeviceId
from shoal.shell.disk import storing, sync_folder, write

ANEW = (
    "ask for a new join string, and join under another name: fedclient join STRING --device NAME --state DIR"
)
"""A name is given once, so a device that has lost its identity comes back as another one."""


@dataclass(frozen=True)
class EnrollmentPort:
    """Where EnrollmentService listens, and the SHA-256 of the key that must answer there."""

    host: str
    port: int
    pin: bytes

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Identity:
    """key, certificate, authorities: PEM. address: where the server is called, "host:port"."""

    key: bytes = field(repr=False)
    certificate: bytes
    authorities: bytes
    federation: str
    device: DeviceId
    role: Role
    address: str
    enrol: EnrollmentPort

    @property
    def parsed(self) -> x509.Certificate:
        return certs.certificate(self.certificate)

    @property
    def begins(self) -> datetime:
        """When the certificate does, UTC."""
        return self.parsed.not_valid_before_utc

    @property
    def ends(self) -> datetime:
        """When the certificate does, UTC."""
        return self.parsed.not_valid_after_utc

    @property
    def fingerprint(self) -> str:
        """Of the device's key, as people compare it."""
        return fingerprint_of(self.key)

    def facts(self) -> dict[str, Any]:
        """For machines, and without the key."""
        return {
            "device": self.device,
            "federation": self.federation,
            "role": self.role.value,
            "server": self.address,
            "ends": self.ends.isoformat(),
            "fingerprint": self.fingerprint,
        }


@dataclass(frozen=True)
class Asking:
    """A key (PEM) for which a certificate is asked, and the request (PKCS #10, DER), always the same one."""

    key: bytes = field(repr=False)
    csr: bytes


def fingerprint_of(key: bytes) -> str:
    return certs.fingerprint(certs.pin_of(certs.key_from_pem(key).public_key()))


def identity_of(asking: Asking, enrolled: Enrolled, enrol: EnrollmentPort) -> Identity:
    """What the server's answer makes of a request. Raises BadPayload when it does not answer this request."""
    certificate = certs.certificate(enrolled.certificate)
    named = certs.named_by(certificate)
    if certificate.public_key() != certs.key_from_pem(asking.key).public_key():
        raise BadPayload("the server sent a certificate for another key", "update the server")
    if (named.federation, named.device) != (enrolled.federation, enrolled.device):
        raise BadPayload("the server's certificate names another device than its answer", "update the server")
    try:
        x509.load_pem_x509_certificates(enrolled.authorities)
    except ValueError:
        raise BadPayload(
            "the server sent authorities that are no certificates", "update the server"
        ) from None
    return Identity(
        asking.key,
        enrolled.certificate,
        enrolled.authorities,
        enrolled.federation,
        enrolled.device,
        enrolled.role,
        enrolled.address,
        enrol,
    )


class Keyring:
    """The folder `folder`. One process works in it at a time: see `DeviceFolder.locked`."""

    def __init__(self, folder: Path) -> None:
        self._identity, self._asking = folder / "identity.json", folder / "asking.json"

    def identity(self) -> Identity | None:
        """The identity, if the device has joined. Raises ConfigError when others can read the key."""
        found = _read(self._identity)
        if found is None:
            return None
        try:
            enrol = found["enrol"]
            identity = Identity(
                found["key"].encode(),
                found["certificate"].encode(),
                found["authorities"].encode(),
                found["federation"],
                found["device"],
                Role(found["role"]),
                found["address"],
                EnrollmentPort(enrol["host"], enrol["port"], bytes.fromhex(enrol["pin"])),
            )
            if identity.parsed.public_key() != certs.key_from_pem(identity.key).public_key():
                raise ValueError("key and certificate do not belong together")
        except (KeyError, TypeError, AttributeError, ValueError, BadPayload) as error:
            raise StorageFault(f"{self._identity} is damaged: {error}", ANEW) from None
        return identity

    def asking(self) -> Asking:
        """The request that waits for its answer, or a new one. On return it is on the disk."""
        found = _read(self._asking)
        if found is not None:
            try:
                asking = Asking(found["key"].encode(), bytes.fromhex(found["csr"]))
                certs.key_of_request(asking.csr)
                if not self._is_answered(asking):
                    return asking
            except (KeyError, TypeError, AttributeError, ValueError, BadPayload):
                pass  # nothing hangs on it: make another
        key = certs.new_key()
        asking = Asking(certs.key_to_pem(key), certs.request(key))
        self._write(self._asking, {"key": asking.key.decode(), "csr": asking.csr.hex()})
        return asking

    def keep(self, identity: Identity) -> None:
        """Put it in the place of the old one. On return it is on the disk. Raises StorageFault."""
        enrol = identity.enrol
        self._write(
            self._identity,
            {
                "federation": identity.federation,
                "device": identity.device,
                "role": identity.role.value,
                "address": identity.address,
                "enrol": {"host": enrol.host, "port": enrol.port, "pin": enrol.pin.hex()},
                "key": identity.key.decode(),
                "certificate": identity.certificate.decode(),
                "authorities": identity.authorities.decode(),
            },
        )
        with storing(self._asking):
            self._asking.unlink(missing_ok=True)
            sync_folder(self._asking.parent)

    def _is_answered(self, asking: Asking) -> bool:
        """Whether the identity came of it: then the process ended before it could be cleared away."""
        found = _read(self._identity)
        return found is not None and found.get("key") == asking.key.decode()

    def _write(self, path: Path, content: Mapping[str, Any]) -> None:
        write(path, json.dumps(content, indent=1).encode(), mode=0o600)


def _read(path: Path) -> dict[str, Any] | None:
    """What is in a file that holds a key. Raises ConfigError when others can read it."""
    try:
        with storing(path), path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise ConfigError(
                    f"{path} holds this device's key, and its mode {mode:04o} lets others at it",
                    f"chmod 600 {path}; if somebody may have read it, have the device revoked and join anew",
                )
            found = json.load(file)
    except StorageFault as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
