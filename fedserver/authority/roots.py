"""The certificate authority of a federation: which root signs, which are trusted, what the server shows.

<state>/authority/
  root-NAME.pem    a root's key and certificate; as long as the file is there, the root is trusted
  issuing          the name of the root that signs
  server.pem       what devices are shown, signed by that root
  joining.pem      what the joining port shows; join strings carry its pin

Each file is written in one step, in this order, so a repetition completes what a crash left out. Everything
except a root can be created again, by `fedserver init`. Only the files decide what is valid; the audit log
records each change, one line before the change.
"""

import os
import stat
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey as PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from fedserver.authority import issuing
from fedserver.authority.clock import Clock
from fedserver.authority.issuing import Key
from fedserver.store.identities.records import Issued
from shoal.core.errors import BadPayload, ConfigError, NotFound, Refused, StorageFault, near
from shoal.core.identity.certificates import certificate as parsed
from shoal.core.identity.certificates import key_from_pem, key_to_pem, new_key, pin_of
from shoal.core.identity.operators import operator_uri
from shoal.core.identity.signing import Signatures
from shoal.core.types import DeviceId
from shoal.shell import disk

FOLDER, ROOT, ISSUING, SERVER, JOINING = "authority", "root", "issuing", "server.pem", "joining.pem"
RESTORE = "restore the state folder from a backup"
MOST_ROOTS = 4
"""How many are trusted at a time, as the contract has it."""
MODE = 0o600
LARGEST = 1 << 16


@dataclass(frozen=True)
class KeyPair:
    """A private key and the certificate of its public half."""

    key: Key
    certificate: x509.Certificate

    @property
    def key_pem(self) -> bytes:
        return key_to_pem(self.key)

    @property
    def pem(self) -> bytes:
        """Only the certificate, without the key."""
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def pin(self) -> bytes:
        return pin_of(self.key.public_key())


class Authority:
    """The keys and certificates that `make` has created; see `open`. roots: by name, oldest first. clock: by
    which they sign."""

    def __init__(self, folder: Path, hosts: Sequence[str]) -> None:
        self._folder, self._hosts, self.clock = folder, tuple(hosts), Clock()
        self.roots: Mapping[str, KeyPair] = _roots(folder)
        self.issuing = _issuing(folder, self.roots)
        self.federation = issuing.federation_of(self.roots[self.issuing].certificate)
        self.joining = load_pair(folder / JOINING)
        self.server = load_pair(folder / SERVER)

    @classmethod
    def open(cls, state: Path, hosts: Sequence[str]) -> "Authority":
        """Raises ConfigError where something is missing or damaged, or a key may be read by others."""
        lacks = lacking(state)
        if lacks == [ROOT, ISSUING, SERVER, JOINING]:
            raise ConfigError(
                f"{state} has no certificates, so devices cannot prove who they are",
                f"create them with: fedserver init --state {state} --host NAME; or serve plain text, to this "
                "machine only, with --insecure-loopback",
            )
        if ROOT in lacks:
            raise ConfigError(f"there is no root-*.pem in {state / FOLDER} any more", RESTORE)
        if lacks:
            raise ConfigError(
                f"{', '.join(lacks)} in {state / FOLDER}: missing or damaged",
                f"create it again with: fedserver init --state {state}",
            )
        return cls(state / FOLDER, hosts)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names and addresses that the server's certificate is good for."""
        return issuing.hosts_of(self.server.certificate)

    @property
    def bundle(self) -> bytes:
        """The certificates of all roots, PEM. Devices and the server trust what these have signed."""
        return b"".join(pair.pem for pair in self.roots.values())

    @property
    def shown(self) -> tuple[tuple[bytes, bytes], bytes]:
        """The server's key and certificate, and the roots that it trusts, PEM. gRPC's threads call it too."""
        return (self.server.key_pem, self.server.pem), self.bundle

    def signer(self, certificate: x509.Certificate) -> str:
        """The name of the root that signed it; "" when none of ours did."""
        for name, pair in self.roots.items():
            with suppress(ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
                certificate.verify_directly_issued_by(pair.certificate)
                return name
        return ""

    def check(self, device: DeviceId, proof: bytes, data: bytes) -> None:
        """Raise BadPayload unless this device has signed these data, with a certificate that one of the roots
        has issued: as the other devices check what it announces to them."""
        roots = [pair.certificate for pair in self.roots.values()]
        Signatures(self.federation, roots).check(device, proof, data)

    def sign(self, data: bytes) -> tuple[str, bytes]:
        """Sign data with the root that signs: its name, and an ECDSA signature with SHA-256. What the data
        begin with must tell them from a certificate."""
        return self.issuing, self.roots[self.issuing].key.sign(data, ECDSA(SHA256()))

    def issue(self, device: DeviceId, key: PublicKey) -> Issued:
        """A certificate for a device's key, from now on. Raises Unavailable while the clock is in doubt."""
        self.clock.check()
        now, pair = _second(), self.roots[self.issuing]
        made = issuing.device(pair.key, pair.certificate, key, self.federation, device, now)
        return self._issued(made, key, now)

    def issue_operator(self, name: str, key: PublicKey, ttl: float) -> Issued:
        """A certificate for an operator's key, from now on and for `ttl` seconds. Raises Unavailable as
        `issue` does."""
        self.clock.check()
        now, pair = _second(), self.roots[self.issuing]
        uri = operator_uri(self.federation, name)
        made = issuing.caller(pair.key, pair.certificate, key, uri, now, now + ttl)
        return self._issued(made, key, now)

    def _issued(self, made: x509.Certificate, key: PublicKey, now: float) -> Issued:
        serial, expires = f"{made.serial_number:x}", made.not_valid_after_utc.timestamp()
        return Issued(made.public_bytes(Encoding.PEM), serial, pin_of(key), self.issuing, now, expires)

    def refresh(self) -> bool:
        """Renew the server's certificate if half of its life is over, or its hosts or its root have changed.

        Return whether it was renewed. Raises StorageFault.
        """
        now, certificate = time.time(), self.server.certificate
        young = certificate.not_valid_after_utc.timestamp() - now > issuing.SERVER_LIFE / 2
        signed = certificate.issuer == self.roots[self.issuing].certificate.subject
        if young and signed and (not self._hosts or self.hosts == self._hosts):
            return False
        self.server = _server(self.roots[self.issuing], self._hosts or self.hosts)
        save_pair(self.server, self._folder / SERVER)
        return True

    # -- roll-over ------------------------------------------------------------------------------------------

    def add(self, name: str, pair: KeyPair) -> None:
        """Trust one more root, made by `new_root`."""
        self.check_room()
        save_pair(pair, _root_path(self._folder, name))
        self.roots = {**self.roots, name: pair}

    def use(self, name: str) -> None:
        """Let this root sign from now on, the server's own certificate too."""
        self.root(name)
        disk.write(self._folder / ISSUING, f"{name}\n".encode())
        self.issuing = name
        self.refresh()

    def drop(self, name: str) -> None:
        """Stop trusting this root."""
        self.check_droppable(name)
        path = _root_path(self._folder, name)
        with disk.storing(path):
            path.unlink(missing_ok=True)
            disk.sync_folder(self._folder)
        self.roots = {known: pair for known, pair in self.roots.items() if known != name}

    def check_room(self) -> None:
        """Raises Refused when no more roots can be trusted."""
        if len(self.roots) >= MOST_ROOTS:
            raise Refused(
                f"{len(self.roots)} authorities are trusted already",
                "remove one with: fedserver authority drop",
            )

    def check_droppable(self, name: str) -> None:
        """Raises Refused for the root that signs."""
        self.root(name)
        if name == self.issuing:
            raise Refused(
                f"authority {name} signs", "first let another one sign, with: fedserver authority use"
            )

    def root(self, name: str) -> KeyPair:
        """Raises NotFound."""
        if name not in self.roots:
            raise NotFound(f"there is no authority {name!r}", near(name, list(self.roots)))
        return self.roots[name]


def _second() -> float:
    """Now, to the second, as certificates have it."""
    return float(int(time.time()))


def lacking(state: Path) -> list[str]:
    """List what `make` has to create: what is missing, and the server's certificate if it is damaged."""
    folder = state / FOLDER
    lacks = [name for name in (ISSUING, SERVER, JOINING) if not (folder / name).is_file()]
    if SERVER not in lacks and _sound(folder / SERVER) is None:
        lacks.append(SERVER)
    return lacks if any(folder.glob("root-*.pem")) else [ROOT, *lacks]


def make(state: Path, federation: str, hosts: Sequence[str]) -> list[str]:
    """Create what is missing of an authority; return the names of the files that were created.

    Raises StorageFault, also if something is missing that cannot be created again: a root that has signed.
    """
    folder, lacks = state / FOLDER, lacking(state)
    disk.make_folder(folder)
    made: list[str] = []
    if ROOT in lacks:
        if lacks != [ROOT, ISSUING, SERVER, JOINING]:
            raise StorageFault(f"there is no root-*.pem in {folder} any more", RESTORE)
        name, pair = new_root(federation)
        save_pair(pair, _root_path(folder, name))
        made.append(_root_path(folder, name).name)
    roots = _roots(folder)
    if ISSUING in lacks:
        disk.write(folder / ISSUING, f"{_signer(folder, roots)}\n".encode())
        made.append(ISSUING)
    root = roots[_issuing(folder, roots)]
    if SERVER in lacks:
        save_pair(_server(root, hosts), folder / SERVER)
        made.append(SERVER)
    if JOINING in lacks:
        key = new_key()
        save_pair(KeyPair(key, issuing.joining(key, hosts, time.time())), folder / JOINING)
        made.append(JOINING)
    return made


def _roots(folder: Path) -> dict[str, KeyPair]:
    """All roots by name, oldest first."""
    found = [(path.stem.removeprefix("root-"), load_pair(path)) for path in folder.glob("root-*.pem")]
    return dict(sorted(found, key=lambda item: (item[1].certificate.not_valid_before_utc, item[0])))


def _issuing(folder: Path, roots: Mapping[str, KeyPair]) -> str:
    """The root that signs. Raises ConfigError."""
    with disk.storing(folder / ISSUING):
        name = (folder / ISSUING).read_text().strip()
    if name not in roots:
        raise ConfigError(f"{folder / ISSUING} names a root that is not there", RESTORE)
    return name


def _signer(folder: Path, roots: Mapping[str, KeyPair]) -> str:
    """The root that signed the server's certificate, or the oldest."""
    server = _sound(folder / SERVER)
    issuer = server.certificate.issuer if server else None
    signed = [name for name, pair in roots.items() if pair.certificate.subject == issuer]
    return [*signed, *roots][0]


def _sound(path: Path) -> KeyPair | None:
    """What is in a file that can be made again; None: it is damaged. Raises ConfigError as `load_pair`."""
    with suppress(StorageFault):
        return load_pair(path)
    return None


def new_root(federation: str) -> tuple[str, KeyPair]:
    """Make a root, which no device trusts yet. Its name is the beginning of its pin."""
    key = new_key()
    name = pin_of(key.public_key()).hex()[:8]
    return name, KeyPair(key, issuing.root(key, federation, name, time.time()))


def _server(root: KeyPair, hosts: Sequence[str]) -> KeyPair:
    key = new_key()
    return KeyPair(key, issuing.server(root.key, root.certificate, key.public_key(), hosts, time.time()))


def _root_path(folder: Path, name: str) -> Path:
    return folder / f"root-{name}.pem"


def save_pair(pair: KeyPair, path: Path) -> None:
    """Write it to `path` in one step, readable by this user only. Raises StorageFault."""
    with disk.replacing(path) as file:
        os.fchmod(file.fileno(), MODE)
        file.write(pair.key_pem + pair.pem)


def load_pair(path: Path) -> KeyPair:
    """Raises ConfigError if other users may read the file, StorageFault if it is damaged."""
    with disk.storing(path), path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & ~MODE:
            raise ConfigError(
                f"{path} contains a key and is readable by other users (mode {mode:04o})", f"chmod 600 {path}"
            )
        pem = file.read(LARGEST)
    try:
        pair = KeyPair(key_from_pem(pem), parsed(pem))
    except (StorageFault, BadPayload) as error:
        raise StorageFault(f"{path}: {error.message}", "restore the state folder from a backup") from None
    if pair.certificate.public_key() != pair.key.public_key():
        raise StorageFault(f"{path}: the certificate does not belong to the key", "restore it from a backup")
    return pair
