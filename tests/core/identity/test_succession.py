"""A server is followed from key to key by proofs that only the former keys can have made."""

from itertools import pairwise

import pytest
from cryptography import x509

from fedserver.authority import issuing
from fedserver.authority.issuing import Key
from shoal.core.identity.certificates import new_key, pin_of
from shoal.core.identity.succession import MAX_LINKS, Link, leads, links_in, succeeded


def certificate(keys: list[Key], signers: list[Key] | None = None) -> x509.Certificate:
    """Of the last of these keys. signers: who has signed in place of each of the keys before it."""
    links: tuple[Link, ...] = ()
    for number, (former, following) in enumerate(pairwise(keys)):
        signer = signers[number] if signers else former
        made = succeeded((), signer, pin(following))
        own = succeeded((), former, pin(following))
        links = (*links, (own[0][0], made[0][1]))[-MAX_LINKS:]
    return issuing.server(keys[-1], "clinic", links)


def pin(key: Key) -> bytes:
    return pin_of(key.public_key())


@pytest.mark.parametrize("changes", [0, 1, 3, MAX_LINKS])
def test_every_former_key_leads_to_the_present_one(changes: int) -> None:
    keys = [new_key() for _ in range(changes + 1)]
    shown = certificate(keys)
    assert all(leads(pin(key), shown) for key in keys)
    assert not leads(pin(new_key()), shown)
    assert len(links_in(shown)) == changes


def test_who_slept_through_more_changes_has_to_join_again() -> None:
    keys = [new_key() for _ in range(MAX_LINKS + 2)]
    assert [leads(pin(key), certificate(keys)) for key in keys] == [False, *[True] * (MAX_LINKS + 1)]


@pytest.mark.parametrize("forged", range(3))
def test_one_signature_of_another_ends_the_chain_before_it(forged: int) -> None:
    keys = [new_key() for _ in range(4)]
    signers = [new_key() if number == forged else key for number, key in enumerate(keys[:-1])]
    shown = certificate(keys, signers)
    assert [leads(pin(key), shown) for key in keys] == [number > forged for number in range(4)]


def test_a_proof_is_for_one_next_key() -> None:
    former, following, thief = new_key(), new_key(), new_key()
    stolen = issuing.server(thief, "clinic", links_in(certificate([former, following])))
    assert not leads(pin(former), stolen)
    assert not leads(pin(following), stolen)


@pytest.mark.parametrize("junk", [(b"", b""), (b"x" * 91, b"y" * 70), (b"\x30" * 400, b"")])
def test_what_is_no_proof_leads_nowhere(junk: Link) -> None:
    key, former = new_key(), new_key()
    shown = issuing.server(key, "clinic", (junk, junk))
    assert not leads(pin(former), shown)
    assert leads(pin(key), shown)
