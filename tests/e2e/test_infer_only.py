"""A device that only infers, on a real server: it renews at two thirds of its certificate's life."""

import time
from pathlib import Path

import pytest

from fedclient.identity.keyring import Identity, JoiningPort, Keyring
from fedclient.identity.link import SecureLink
from fedserver.authority import clock
from fedserver.store.identities.audit import Event
from fedserver.store.identities.records import DAY
from shoal.core.exchange.link import Hello
from shoal.core.identity.certificates import key_to_pem
from shoal.core.identity.joining import Role
from tests.server.authority.peers import Peer, World, lines_of, play


def identity_of(peer: Peer) -> Identity:
    """What `fedclient join` would have kept."""
    found = peer.issued
    assert found is not None
    joining_port = JoiningPort(peer.string.host, peer.string.port, peer.string.pin)
    key = key_to_pem(peer.key)
    return Identity(
        key,
        found.certificate,
        found.authorities,
        found.federation,
        found.device,
        found.role,
        found.address,
        joining_port,
    )


def test_it_renews_when_it_comes_after_two_thirds_of_the_certificates_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(found: World) -> None:
        keyring, now, counted = Keyring(tmp_path / "identity"), time.time, clock.counted
        keyring.keep(identity_of(await found.device("phone", role=Role.INFER_ONLY)))
        for days, renewed in ((0.0, 0), (8.0, 0), (10.0, 1)):
            with monkeypatch.context() as later:
                later.setattr("time.time", lambda days=days: now() + days * DAY)
                later.setattr(clock, "counted", lambda days=days: counted() + days * DAY)
                identity = keyring.identity()
                assert identity is not None
                link = SecureLink(keyring, identity, lambda text: None)
                await link.renew_if_required(Hello("toy"))
                await link.close()
            assert len(lines_of(found.state, Event.RENEWED)) == renewed
        assert keyring.identity() != identity
        assert not found.coordinator.visitors["phone"].session

    play(story, tmp_path / "s")
