"""Proofs hold only for what they were made for; requests and certificates are read strictly."""

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import BadPayload, StorageFault
from shoal.core.identity import certificates as certs
from shoal.core.identity import proof

SECRET, NONCE, PIN = b"s" * 32, b"n" * 32, b"p" * 32


def test_a_proof_is_for_one_secret_challenge_server_and_request() -> None:
    key, csr = proof.key_of(SECRET), certs.request(certs.new_key())
    made = proof.prove(key, NONCE, PIN, csr)
    assert proof.is_proved(key, NONCE, PIN, csr, made)
    others = [
        (proof.key_of(b"t" * 32), NONCE, PIN, csr),
        (key, b"m" * 32, PIN, csr),
        (key, NONCE, b"q" * 32, csr),
        (key, NONCE, PIN, certs.request(certs.new_key())),
    ]
    assert not any(proof.is_proved(*other, made) for other in others)


def test_a_signature_is_by_one_key_for_one_request() -> None:
    key, csr = certs.new_key(), certs.request(certs.new_key())
    made = proof.sign(key, NONCE, PIN, csr)
    assert proof.is_signed(key.public_key(), NONCE, PIN, csr, made)
    assert not proof.is_signed(certs.new_key().public_key(), NONCE, PIN, csr, made)
    assert not proof.is_signed(key.public_key(), NONCE, PIN, csr + b" ", made)
    assert not proof.is_signed(key.public_key(), NONCE, PIN, csr, b"no signature")


def test_a_request_gives_the_key_that_made_it() -> None:
    key = certs.new_key()
    assert certs.pin_of(certs.key_of_request(certs.request(key))) == certs.pin_of(key.public_key())


@given(st.binary(max_size=certs.MAX_REQUEST + 10))
def test_bytes_that_are_no_request_are_refused(data: bytes) -> None:
    with pytest.raises(BadPayload):
        certs.key_of_request(data)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_damaged_request_never_passes_for_another_key(place: int, flip: int) -> None:
    """It is refused, unless the damage changes nothing: how many bits of the last byte are not used may be
    wrong where they are zeros."""
    key = certs.new_key()
    csr = bytearray(certs.request(key))
    csr[place % len(csr)] ^= flip
    try:
        found = certs.key_of_request(bytes(csr))
    except BadPayload:
        return
    assert certs.pin_of(found) == certs.pin_of(key.public_key())
    assert csr[place % len(csr)] == flip < 8


@pytest.mark.parametrize(
    "key", [ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65537, 2048)]
)
def test_other_kinds_of_keys_are_refused(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    with pytest.raises(BadPayload, match="P-256"):
        certs.key_of_request(builder.sign(key, SHA256()).public_bytes(Encoding.DER))


def test_a_key_comes_back_from_its_file_and_another_text_does_not() -> None:
    key = certs.new_key()
    again = certs.key_from_pem(certs.key_to_pem(key))
    assert certs.pin_of(again.public_key()) == certs.pin_of(key.public_key())
    with pytest.raises(StorageFault, match="cannot be read"):
        certs.key_from_pem(b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")


def test_a_strangers_certificate_names_no_caller() -> None:
    pem = trustme.CA().issue_cert("device.example").cert_chain_pems[0].bytes()
    with pytest.raises(BadPayload, match="not name a caller"):
        certs.named_by(certs.certificate(pem))


def test_text_that_is_no_certificate_is_refused() -> None:
    with pytest.raises(BadPayload, match="not a certificate"):
        certs.certificate(b"hello")
