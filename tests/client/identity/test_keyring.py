"""A device's identity on its disk: readable only by its owner, and whole."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedclient.identity.keyring import Identity, Keyring
from shoal.core.errors import ConfigError, StorageFault
from shoal.core.identity import certificates as certs
from tests.client.federation import Federation


@pytest.fixture
def identity() -> Identity:
    return Federation().identity_for("attic", "127.0.0.1:1")


def test_what_is_kept_comes_back(identity: Identity, tmp_path: Path) -> None:
    keyring = Keyring(tmp_path / "identity")
    assert keyring.identity() is None
    keyring.keep(identity)
    assert Keyring(tmp_path / "identity").identity() == identity
    several = replace(identity, addresses=("a.example.org:50051", "b.example.org:50051"))
    keyring.keep(several)
    assert Keyring(tmp_path / "identity").identity() == several


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601])
def test_a_key_that_others_can_get_at_is_refused(identity: Identity, tmp_path: Path, mode: int) -> None:
    keyring = Keyring(tmp_path)
    keyring.keep(identity)
    keyring.asking()
    for name, use in (("identity.json", keyring.identity), ("asking.json", keyring.asking)):
        path = tmp_path / name
        path.chmod(mode)
        with pytest.raises(ConfigError, match=rf"readable by other users \(mode {mode:04o}\)") as caught:
            use()
        assert f"chmod 600 {path}" in caught.value.hint
        path.chmod(0o600)
    assert keyring.identity() == identity


def test_a_request_stays_the_same_until_it_is_answered(identity: Identity, tmp_path: Path) -> None:
    first = Keyring(tmp_path).asking()
    assert Keyring(tmp_path).asking() == first
    assert certs.key_of_request(first.csr) == certs.key_from_pem(first.key).public_key()
    Keyring(tmp_path).keep(identity)
    assert Keyring(tmp_path).asking() != first


def test_a_damaged_request_is_made_anew(tmp_path: Path) -> None:
    first = Keyring(tmp_path).asking()
    path = tmp_path / "asking.json"
    for damage in ("", "[]", "{}", '{"key": 1, "csr": "zz"}', json.dumps({"key": "", "csr": "00"})):
        path.write_text(damage)
        assert Keyring(tmp_path).asking() != first


def test_a_damaged_identity_is_an_error_with_a_hint(identity: Identity, tmp_path: Path) -> None:
    keyring = Keyring(tmp_path)
    keyring.keep(identity)
    path = tmp_path / "identity.json"
    whole = json.loads(path.read_text())
    other = Federation().identity_for("attic", "127.0.0.1:1")
    for change in (
        {"key": other.key.decode()},
        {"certificate": "none"},
        {"role": "king"},
        {"joining_port": {"host": "h", "port": 1, "pin": "xx"}},
        {"key": None},
    ):
        path.write_text(json.dumps({**whole, **change}))
        with pytest.raises(StorageFault, match=r"identity\.json is damaged") as caught:
            keyring.identity()
        assert "under the same name" in caught.value.hint
    path.write_text("{")
    with pytest.raises(StorageFault, match="is damaged"):
        keyring.identity()


def test_neither_key_nor_request_is_shown_by_accident(identity: Identity, tmp_path: Path) -> None:
    asking = Keyring(tmp_path).asking()
    assert "PRIVATE" not in repr(asking)
    assert "PRIVATE" not in repr(identity)
    assert "PRIVATE" not in json.dumps(identity.facts())
