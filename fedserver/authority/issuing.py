"""Create certificates from keys and names. P-256 and SHA-256 throughout; they are valid for all time."""

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey as PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shoal.core.identity.certificates import BEGIN, END
from shoal.core.identity.joining import TLS_NAME
from shoal.core.identity.succession import Link, extension

Key = ec.EllipticCurvePrivateKey


def server(key: Key, federation: str, links: tuple[Link, ...]) -> x509.Certificate:
    """The self-signed certificate of a server, which it shows at its ports and which issues those of callers.

    links: what leads to this key from former ones, see `shoal.core.identity.succession`.
    """
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, federation),
            x509.NameAttribute(NameOID.COMMON_NAME, "Shoal server"),
        ]
    )
    builder = _begin(subject, subject, key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(SERVES), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(TLS_NAME)]), critical=False)
    if links:
        builder = builder.add_extension(extension(links), critical=False)
    return builder.sign(key, SHA256())


SERVES = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
"""The uses of a server's certificate; TLS also wants that of the certificates that it issues."""


def caller(issuer_key: Key, issuer: x509.Certificate, key: PublicKey, uri: str) -> x509.Certificate:
    """The certificate of a device or an operator, whom this URI names. It contains nothing else."""
    builder = _begin(x509.Name([]), issuer.subject, key)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)])
    builder = builder.add_extension(names, critical=True)  # critical: there is no subject beside it
    found = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    identifier = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(found)
    return builder.add_extension(identifier, critical=False).sign(issuer_key, SHA256())


def federation_of(certificate: x509.Certificate) -> str:
    """The federation of a server."""
    (found,) = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return str(found.value)


def _begin(subject: x509.Name, issuer: x509.Name, key: PublicKey) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(BEGIN)
        .not_valid_after(END)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(signs: bool) -> x509.KeyUsage:
    """signs: whether the key also signs certificates; otherwise it only identifies its owner."""
    no = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "crl_sign"), False
    )
    return x509.KeyUsage(
        digital_signature=True, key_cert_sign=signs, encipher_only=False, decipher_only=False, **no
    )
