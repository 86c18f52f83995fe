"""Create certificates from keys and names. P-256 and SHA-256 throughout; times are seconds since 1970.

The root's and the server's certificates begin two years before they are made and last for years after, so
that a device whose clock is a year off can still verify them. A device's begins a day before: the server's
own clock is the only one that looks at it.
"""

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey as PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedserver.store.identities.records import DAY, DEVICE_BACK
from shoal.core.identity.certificates import uri_of
from shoal.core.types import DeviceId

YEAR = 365.25 * DAY
BACK = 2 * YEAR
"""How long before their creation the root's and the server's certificates become valid."""
ROOT_LIFE, SERVER_LIFE = 30 * YEAR, 4 * YEAR
DEVICE_LIFE = 14 * DAY

Key = ec.EllipticCurvePrivateKey


def root(key: Key, federation: str, name: str, now: float) -> x509.Certificate:
    """The self-signed certificate of an authority, which carries its federation's name."""
    subject = _name(federation, f"Shoal authority {name}")
    builder = _begin(subject, subject, key.public_key(), now - BACK, now + ROOT_LIFE)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    return _own(builder, key).sign(key, SHA256())


def server(
    root_key: Key, issuer: x509.Certificate, key: PublicKey, hosts: Sequence[str], now: float
) -> x509.Certificate:
    """The certificate that the server shows to devices, valid for these host names and addresses."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedserver")])
    builder = _begin(subject, issuer.subject, key, now - BACK, now + SERVER_LIFE)
    return _issued(_serving(builder, hosts), issuer).sign(root_key, SHA256())


def joining(key: Key, hosts: Sequence[str], now: float) -> x509.Certificate:
    """The certificate of the joining port. It is self-signed: callers check only the pin of its key."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedserver joining")])
    builder = _begin(subject, subject, key.public_key(), now - BACK, now + ROOT_LIFE)
    return _own(_serving(builder, hosts), key).sign(key, SHA256())


def device(
    root_key: Key, issuer: x509.Certificate, key: PublicKey, federation: str, name: DeviceId, now: float
) -> x509.Certificate:
    """The certificate of a device. It names the device in one URI and contains nothing else."""
    return caller(root_key, issuer, key, uri_of(federation, name), now, now + DEVICE_LIFE)


def caller(
    root_key: Key, issuer: x509.Certificate, key: PublicKey, uri: str, now: float, end: float
) -> x509.Certificate:
    """The certificate of a device or an operator, whom this URI names."""
    builder = _begin(x509.Name([]), issuer.subject, key, now - DEVICE_BACK, end)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)])
    builder = builder.add_extension(names, critical=True)  # critical: there is no subject beside it
    return _issued(builder, issuer).sign(root_key, SHA256())


def hosts_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """The host names and addresses for which a server's certificate is valid, in its order."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return tuple(str(name.value) for name in names)


def federation_of(certificate: x509.Certificate) -> str:
    """The federation to which an authority belongs."""
    (found,) = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return str(found.value)


def _begin(
    subject: x509.Name, issuer: x509.Name, key: PublicKey, begin: float, end: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_time(begin))
        .not_valid_after(_time(end))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _serving(builder: x509.CertificateBuilder, hosts: Sequence[str]) -> x509.CertificateBuilder:
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return builder.add_extension(x509.SubjectAlternativeName(map(_host, hosts)), critical=False)


def _own(builder: x509.CertificateBuilder, key: Key) -> x509.CertificateBuilder:
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    return builder.add_extension(identifier, critical=False)


def _issued(builder: x509.CertificateBuilder, issuer: x509.Certificate) -> x509.CertificateBuilder:
    found = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    identifier = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(found)
    return builder.add_extension(identifier, critical=False)


def _name(federation: str, name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, federation),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )


def _usage(signs: bool) -> x509.KeyUsage:
    """signs: whether the key signs other certificates; otherwise it only identifies its owner."""
    no = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False
    )
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
        **no,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _time(seconds: float) -> datetime:
    """To the second, and not before 1970: no device's clock is either."""
    return datetime.fromtimestamp(0, UTC) + timedelta(seconds=int(max(0.0, seconds)))
