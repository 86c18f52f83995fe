"""A device between two tasks: which release it takes from where, and what it keeps of it."""

import asyncio
import errno
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import trustme

import shoal
from fedclient.config import ClientConfig, UpdatesConfig
from fedclient.software.folder import SoftwareFolder, folder_of
from fedclient.software.launching import _try
from fedclient.software.standing import STARTS, Standing
from fedclient.software.updates import Updates
from shoal.core.errors import BadPayload, ConfigError
from shoal.core.identity.release import Release
from shoal.shell.console import Become
from tests.releases import MINOR, PATCH, SKIPPING, Maker


@dataclass
class Owned:
    """A device whose owner allows updates from this maker."""

    maker: Maker
    settings: ClientConfig
    said: list[str] = field(default_factory=list)

    @property
    def folder(self) -> SoftwareFolder:
        found = folder_of(self.settings)
        assert found is not None
        return found

    def between(self) -> bool:
        """Whether this process makes way for a release."""
        try:
            asyncio.run(Updates(self.settings, self.folder, self.said.append).between())
        except Become:
            return True
        return False


@pytest.fixture
def device(tmp_path: Path) -> Owned:
    maker = Maker(tmp_path / "releases")
    updates = UpdatesConfig(str(maker.folder), maker.public)
    return Owned(maker, ClientConfig(state=tmp_path / "state", updates=updates))


def test_the_next_minor_version_is_taken_and_none_is_skipped(device: Owned) -> None:
    assert not device.between()
    device.maker.publish(SKIPPING)
    assert not device.between()
    device.maker.publish(PATCH)
    release = device.maker.publish(MINOR)
    assert device.between()
    assert device.folder.standing() == Standing(trial=MINOR, due=True)
    path = device.folder.opened(MINOR)
    assert f'__version__ = "{MINOR}"' in (path / "shoal/__init__.py").read_text()
    assert (path.parent / release.wheel).is_file()


def test_a_release_that_failed_makes_room_for_a_patch(device: Owned) -> None:
    device.maker.publish(MINOR)
    assert device.between()
    device.folder.note(device.folder.standing().begun().rejected("it ended"))
    assert not device.between()
    device.maker.publish(PATCH)
    assert device.between()
    assert device.folder.standing().trial == PATCH


def test_a_disk_without_room_to_unpack_says_nothing_of_a_release(
    device: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is fetched at the next look, when there may be room, and not given up after three full disks."""

    def full(archive: ZipFile, path: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    device.maker.publish(PATCH)
    with monkeypatch.context() as patched:
        patched.setattr(ZipFile, "extractall", full)
        for _ in range(STARTS + 1):
            assert device.between()
            assert _try(device.folder, device.folder.standing(), [], device.said.append) == Standing()
    assert sum("No space left on device" in line for line in device.said) == STARTS + 1
    assert device.between()
    assert device.folder.opened(PATCH).is_dir()


def test_an_older_release_is_never_taken(device: Owned) -> None:
    device.maker.publish(shoal.__version__)
    assert not device.between()
    assert not device.folder.root.exists()


def test_what_is_not_installed_here_is_named(device: Owned) -> None:
    device.maker.publish(PATCH, needs="numpy>=99")
    device.maker.publish(MINOR, needs="not-on-this-device")
    assert not device.between()
    (first, second) = [line for line in device.said if "needs" in line]
    assert "not-on-this-device" in first
    assert "numpy>=99" in second
    assert not device.folder.root.exists()


def test_a_wheel_that_needs_what_is_not_here_is_not_fetched_at_each_look(
    device: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def looks(updates: Updates) -> None:
        for _ in range(3):
            updates._next_look = 0.0
            await updates.between()

    device.maker.publish(PATCH, needs="not-on-this-device")
    updates = Updates(device.settings, device.folder, device.said.append)
    asyncio.run(looks(updates))
    assert [line for line in device.said if "is fetched" in line] == [f"version {PATCH} is fetched"]
    monkeypatch.setattr("fedclient.software.updates.lacking", lambda *args: [])  # its owner installs it
    with pytest.raises(Become):
        asyncio.run(looks(updates))


@pytest.mark.parametrize("what", ["key", "wheel", "size", "no wheel", "another series", "torn"])
def test_what_the_maker_has_not_signed_is_not_kept(device: Owned, what: str) -> None:
    release = device.maker.publish(PATCH)
    wheel, statement = device.maker.folder / release.wheel, device.maker.folder / release.statement
    if what == "key":
        other = Maker(device.maker.folder / "other")
        statement.write_bytes(release.signed(other.key))
    elif what == "wheel":
        content = bytearray(wheel.read_bytes())
        content[1000] ^= 1
        wheel.write_bytes(content)
    elif what == "size":
        wheel.write_bytes(wheel.read_bytes() + b"\0")
    elif what == "no wheel":
        wheel.unlink()
    elif what == "another series":
        statement.rename(device.maker.folder / Release(MINOR, "0" * 64, 1).statement)
    else:
        statement.write_bytes(statement.read_bytes()[:-9])
    assert not device.between()
    assert len(device.said) == (2 if what in ("wheel", "size", "no wheel") else 1)
    assert not device.folder.root.exists()


def test_damage_on_the_disk_is_found_before_a_start(device: Owned) -> None:
    release = device.maker.publish(PATCH)
    assert device.between()
    path = device.folder.opened(PATCH)
    (path / "shoal/__init__.py").write_text("")
    (path / "fedclient/__main__.py").unlink()
    assert device.folder.as_it_is(PATCH) is None
    assert device.folder.opened(PATCH) == device.folder.as_it_is(PATCH)
    for name in (release.wheel, f"shoal-{PATCH}.release"):
        whole = (device.folder.root / name).read_bytes()
        (device.folder.root / name).write_bytes(whole[:-9])
        with pytest.raises(BadPayload):
            device.folder.opened(PATCH)
        (device.folder.root / name).write_bytes(whole)
    (device.folder.root / "standing.json").write_text("{")
    assert device.folder.standing() == Standing()


def test_only_what_is_needed_is_kept(device: Owned) -> None:
    device.maker.publish(PATCH)
    assert device.between()
    device.folder.opened(PATCH)
    device.maker.publish(MINOR)
    device.folder.note(device.folder.standing().adopted())
    device.between()
    names = {path.name for path in device.folder.root.iterdir()}
    assert {PATCH, MINOR} - names == {MINOR}, "the new one is unpacked when it is tried"
    device.folder.note(Standing(MINOR))
    device.folder.tidy()
    left = {path.name for path in device.folder.root.iterdir()}
    assert left == {"standing.json", f"shoal-{MINOR}.release", f"shoal_fed-{MINOR}-py3-none-any.whl"}


@pytest.fixture
def address(device: Owned, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The maker's folder at an https address, whose certificate this process trusts."""
    authority = trustme.CA()
    bundle = device.maker.folder / "authority.pem"
    authority.cert_pem.write_to_path(str(bundle))
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    handler = partial(Quiet, directory=str(device.maker.folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"https://localhost:{server.server_port}"
        server.shutdown()
        thread.join()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        pass


def test_releases_come_over_https(
    device: Owned, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates = UpdatesConfig(address, device.maker.public)
    device.settings = replace(device.settings, updates=updates)
    assert not device.between()
    assert not device.said, "no statement is no trouble"
    device.maker.publish(PATCH)
    monkeypatch.delenv("SSL_CERT_FILE")
    assert not device.between()
    monkeypatch.setenv("SSL_CERT_FILE", str(device.maker.folder / "authority.pem"))
    assert device.between()


@pytest.mark.parametrize("source", ["http://shoal.example", "releases", "https://", "https://a:b/", ""])
def test_a_source_is_an_https_address_or_an_absolute_path(source: str) -> None:
    with pytest.raises(ConfigError):
        UpdatesConfig(source)
