"""The identity of a device that has joined by hand, as `fedclient join` would have kept it."""

from fedclient.identity.keyring import Identity, JoiningPort
from shoal.core.identity.certificates import key_to_pem
from tests.server.authority.peers import Peer


def identity_of(peer: Peer) -> Identity:
    """What `fedclient join` would have kept."""
    found = peer.issued
    assert found is not None
    joining_port = JoiningPort(peer.string.host, peer.string.port, peer.string.pin)
    key = key_to_pem(peer.key)
    return Identity(
        key,
        found.certificate,
        found.authority,
        found.federation,
        found.device,
        found.role,
        found.address,
        joining_port,
    )
