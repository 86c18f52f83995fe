"""What a device signs for others counts only with a certificate of the federation, in its own name."""

import pytest

from shoal.core.errors import BadPayload
from shoal.core.identity.signing import Certified
from tests.client.federation import Federation


def certified(federation: Federation, device: str) -> Certified:
    identity = federation.identity_for(device)
    return Certified(identity.key, identity.certificate, identity.authority)


def test_a_device_checks_what_another_has_signed() -> None:
    federation = Federation()
    attic, barn = certified(federation, "attic"), certified(federation, "barn")
    proof = attic.sign(b"keys")
    barn.check("attic", proof, b"keys")
    assert len(proof) < 2048
    with pytest.raises(BadPayload, match="'attic' of the cohort did not sign"):
        barn.check("attic", proof, b"other keys")
    with pytest.raises(BadPayload, match="'barn' of the cohort are signed by another device"):
        attic.check("barn", proof, b"keys")


def test_a_certificate_of_another_authority_or_none_at_all_does_not_count() -> None:
    barn, stranger = certified(Federation(), "barn"), certified(Federation(), "attic")
    with pytest.raises(BadPayload, match="signed by another device"):
        barn.check("attic", stranger.sign(b"keys"), b"keys")
    proof = stranger.sign(b"keys")
    for wrong in (b"", b"\x00", proof[:40], proof[:-1], b"\xff\xff" + proof[2:], bytes(len(proof))):
        with pytest.raises(BadPayload):
            barn.check("attic", wrong, b"keys")
