"""How a device reaches its server: as its identity says, or in plain text only on this machine."""

from dataclasses import replace
from pathlib import Path

import pytest

from fedclient.cli.status import facts, text
from fedclient.config import ClientConfig
from fedclient.identity.connection import endpoint
from fedclient.identity.keyring import Identity, Keyring, fingerprint_of
from fedclient.store.state import DeviceFolder
from shoal.core.errors import ConfigError
from tests.client.federation import Federation

PLAIN = ClientConfig(insecure_loopback=True)


@pytest.fixture
def identity(tmp_path: Path) -> Identity:
    """Of the device "kitchen", kept in the folder."""
    folder = DeviceFolder(tmp_path)
    identity = Federation().identity_for("kitchen", "fl.example.org:50051")
    Keyring(folder.identity).keep(identity)
    return identity


@pytest.mark.parametrize("server", ["127.0.0.1:50051", "localhost:1", "[::1]:65535"])
def test_plain_text_goes_to_this_machine(server: str) -> None:
    way = endpoint(replace(PLAIN, server=server, device="pi"))
    assert (way.address, way.device, way.identity) == (server, "pi", None)


@pytest.mark.parametrize(
    "server", ["fl.example.org:50051", "127.0.0.1.example.org:1", "10.0.0.5:443", "0.0.0.0:1", "[fe80::1]:1"]
)
def test_plain_text_goes_to_no_other_machine(server: str) -> None:
    with pytest.raises(ConfigError, match="plain text is allowed to this one only"):
        endpoint(replace(PLAIN, server=server))


@pytest.mark.parametrize("server", ["", "localhost", "localhost:", "localhost:0", "localhost:70000", "a/b:1"])
def test_what_is_no_address_is_said(server: str, identity: Identity, tmp_path: Path) -> None:
    for settings in (PLAIN, ClientConfig(state=tmp_path)):
        with pytest.raises(ConfigError, match="host:port"):
            endpoint(replace(settings, server=server))


def test_no_server_is_said() -> None:
    with pytest.raises(ConfigError, match="--server"):
        endpoint(PLAIN)


def test_a_device_that_has_not_joined_is_told_how(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has not joined") as caught:
        endpoint(ClientConfig(server="127.0.0.1:50051", state=tmp_path))
    assert "fedclient join" in caught.value.hint
    assert "insecure_loopback: true" in caught.value.hint


def test_a_device_that_waits_for_approval_is_told_so(tmp_path: Path) -> None:
    folder = DeviceFolder(tmp_path)
    asking = Keyring(folder.identity).asking()
    with pytest.raises(ConfigError) as caught:
        endpoint(ClientConfig(state=tmp_path))
    assert f"has no answer yet; its key: {fingerprint_of(asking.key)}" in caught.value.message
    assert "fedserver device approve" in caught.value.hint
    found = facts(ClientConfig(state=tmp_path))
    assert str(caught.value) in text(found)


def test_the_identity_says_who_and_where(identity: Identity, tmp_path: Path) -> None:
    way = endpoint(ClientConfig(state=tmp_path))
    assert (way.address, way.device, way.identity) == ("fl.example.org:50051", "kitchen", identity)
    assert endpoint(ClientConfig(state=tmp_path, device="kitchen")) == way
    other = endpoint(ClientConfig(state=tmp_path, server="10.0.0.5:443"))
    assert (other.address, other.identity) == ("10.0.0.5:443", identity)


def test_another_name_than_the_identitys_is_an_error(identity: Identity, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="that of device kitchen, but the settings name attic"):
        endpoint(ClientConfig(state=tmp_path, device="attic"))
