"""From a join string to an identity: what is sent and to whom, what is stored, and the end at any moment."""

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from fedclient.faults import WrongServer
from fedclient.identity import keyring as keyrings
from fedclient.identity.join import join, read_join_string
from fedclient.identity.keyring import Identity, Keyring
from fedclient.identity.rpc import EnrollmentClient
from fedclient.store.state import DeviceFolder
from shoal.core.errors import BadPayload, ConfigError, InUse, Refused, Unavailable
from shoal.core.identity import certificates as certs
from shoal.core.identity.joining import IssuedIdentity
from shoal.shell.console import Console
from tests.client.crashes import Crash, Steps
from tests.client.federation import Authority, Federation, join_port
from tests.waiting import HANG


class Silent(Console):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def progress(self, text: str) -> None:
        self.said.append(text)

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def federation() -> Federation:
    return Federation(address="fl.example.org:50051")


@pytest.fixture
def folder(tmp_path: Path) -> DeviceFolder:
    return DeviceFolder(tmp_path / "state")


def against(federation: Federation, steps: Callable[[], Awaitable[None]], **port: Any) -> None:
    async def run() -> None:
        async with join_port(federation, **port):
            await asyncio.wait_for(steps(), HANG)

    asyncio.run(run())


def ask(
    federation: Federation, folder: DeviceFolder, device: str | None = "attic", **options: Any
) -> tuple[Identity, bool]:
    found: list[tuple[Identity, bool]] = []

    async def steps() -> None:
        found.append(await join(folder, federation.line, device, options.pop("console", Silent()), **options))

    against(federation, steps)
    return found[0]


def files(folder: DeviceFolder) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.root.rglob("*") if path.is_file()}


# -- what comes of it -----------------------------------------------------------------------------------


def test_a_join_string_brings_an_identity(federation: Federation, folder: DeviceFolder) -> None:
    identity, new = ask(federation, folder)
    assert new
    assert (identity.device, identity.federation, identity.address) == ("attic", "shoal", federation.address)
    assert Keyring(folder.identity).identity() == identity
    assert folder.known_device() == "attic"
    (csr,) = federation.answered
    key = certs.key_from_pem(identity.key).public_key()
    assert certs.key_of_request(csr) == key == certs.key_in(certs.certificate(identity.certificate))
    assert os.listdir(folder.identity) == ["identity.json"]
    assert (folder.identity / "identity.json").stat().st_mode & 0o777 == 0o600


def test_the_key_is_never_open_to_others_not_even_while_it_is_written(
    federation: Federation, folder: DeviceFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[int] = []
    original = os.fsync

    def looked_at(descriptor: int) -> None:
        modes.extend(path.stat().st_mode & 0o777 for path in folder.identity.glob("*") if path.is_file())
        original(descriptor)

    monkeypatch.setattr(os, "fsync", looked_at)
    before = os.umask(0)
    try:
        ask(federation, folder)
    finally:
        os.umask(before)
    assert set(modes) == {0o600}


def test_the_secret_is_nowhere(
    federation: Federation, folder: DeviceFolder, capfd: pytest.CaptureFixture[str]
) -> None:
    console = Silent()
    ask(federation, folder, console=console)
    said = "\n".join([*console.said, *capfd.readouterr()])
    secret, text = federation.line.secret, str(federation.line).rpartition(":")[2]
    for content in [said.encode(), *files(folder).values()]:
        assert secret not in content
        assert text.encode() not in content
        assert secret.hex().encode() not in content


def test_a_name_is_made_of_the_machine_and_the_key(federation: Federation, folder: DeviceFolder) -> None:
    federation.refuse = lambda context: context.abort(grpc.StatusCode.UNAVAILABLE, "later")
    with pytest.raises(Unavailable, match="later"):
        ask(federation, folder, None)
    federation.refuse = None
    identity, _ = ask(federation, folder, None)
    piece = identity.fingerprint.replace(" ", "")[:6]
    assert identity.device.endswith(f"-{piece}")


def test_who_has_joined_keeps_its_identity(federation: Federation, folder: DeviceFolder) -> None:
    first, _ = ask(federation, folder)
    before, federation.log[:] = files(folder), []
    assert ask(federation, folder, None) == (first, False)
    assert ask(federation, folder, "attic") == (first, False)
    assert federation.log == []
    assert files(folder) == before


def test_another_name_or_server_is_an_error(federation: Federation, folder: DeviceFolder) -> None:
    ask(federation, folder)
    with pytest.raises(ConfigError, match="belongs to device attic"):
        ask(federation, folder, "cellar")
    with pytest.raises(ConfigError, match="holds the identity of attic") as caught:
        ask(Federation(), folder)
    assert "--state" in caught.value.hint


def test_two_at_once_are_one(federation: Federation, folder: DeviceFolder) -> None:
    with folder.locked(), pytest.raises(InUse, match="is in use by another fedclient"):
        ask(federation, DeviceFolder(folder.root))


# -- whom it is asked of --------------------------------------------------------------------------------


def test_nothing_is_sent_to_a_port_with_another_key(folder: DeviceFolder) -> None:
    """A recording server that completes the handshake: not one byte of an application reaches it."""
    received: list[bytes] = []
    ended = asyncio.Event()

    async def record(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            received.append(await reader.read())
        except ConnectionError:
            received.append(b"")
        ended.set()
        writer.close()

    async def steps() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
        context.set_alpn_protocols(["h2"])
        server = await asyncio.start_server(record, "127.0.0.1", 0, ssl=context)
        line = replace(Federation().line, port=server.sockets[0].getsockname()[1])
        with pytest.raises(WrongServer, match=rf"another server answers at 127\.0\.0\.1:{line.port}"):
            await join(folder, line, "attic", Silent())
        await asyncio.wait_for(ended.wait(), HANG)
        server.close()

    asyncio.run(steps())
    assert received == [b""]
    assert Keyring(folder.identity).identity() is None


def test_a_port_that_speaks_no_tls_is_named(folder: DeviceFolder) -> None:
    async def steps() -> None:
        server = await asyncio.start_server(lambda r, w: w.write(b"SSH-2.0\r\n" * 10), "127.0.0.1", 0)
        line = replace(Federation().line, port=server.sockets[0].getsockname()[1])
        with pytest.raises(WrongServer, match="does not speak TLS"):
            await join(folder, line, "attic", Silent())
        server.close()

    asyncio.run(steps())


def test_nobody_there_is_unavailable(folder: DeviceFolder) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        line = replace(Federation().line, port=free.getsockname()[1])
    with pytest.raises(Unavailable, match="does not answer: "):
        asyncio.run(join(folder, line, "attic", Silent()))


# -- what can be answered -------------------------------------------------------------------------------


def test_a_wrong_secret_is_refused_and_the_right_one_goes_on(
    federation: Federation, folder: DeviceFolder
) -> None:
    right = federation.line
    federation.line = replace(right, secret=bytes(32))
    wrong = federation.line

    async def steps() -> None:
        federation.line = replace(right, port=federation.line.port)
        with pytest.raises(Refused, match="no such token, or it is used up"):
            await join(folder, replace(wrong, port=federation.line.port), "attic", Silent())
        assert Keyring(folder.identity).identity() is None
        assert folder.known_device() is None
        await join(folder, federation.line, "cellar", Silent())  # another name will do as well

    against(federation, steps)
    assert folder.known_device() == "cellar"


def test_an_operator_approves_first_and_an_interrupted_join_continues(
    federation: Federation, folder: DeviceFolder
) -> None:
    class Interrupting(Silent):
        """Where Ctrl-C is pressed as soon as it says what it waits for."""

        def say(self, text: str) -> None:
            super().say(text)
            raise KeyboardInterrupt

    federation.pending, console = 1, Interrupting()
    with pytest.raises(KeyboardInterrupt):
        ask(federation, folder, console=console)
    asking = Keyring(folder.identity).asking()
    shown = keyrings.fingerprint_of(asking.key)
    assert any(shown in text and "fedserver device approve attic" in text for text in console.said)
    identity, _ = ask(federation, folder)
    assert identity.key == asking.key


def test_waiting_for_approval_outlives_a_server_that_is_away(
    federation: Federation, folder: DeviceFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.core.exchange.wire.identity.SHORTEST_RETRY", 0.01)
    monkeypatch.setattr("fedclient.net.backoff.FIRST_WAIT", 0.01)
    federation.pending, federation.lose = 2, 2
    identity, _ = ask(federation, folder)
    assert federation.log.count("join") == 5
    assert list(federation.answered) == [federation_csr(federation, identity)]


def federation_csr(federation: Federation, identity: Identity) -> bytes:
    """The request that was answered with this identity's certificate."""
    (found,) = [
        csr for csr, given in federation.answered.items() if given.certificate == identity.certificate
    ]
    return found


def test_an_answer_to_another_request_is_not_taken(
    federation: Federation, folder: DeviceFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = federation.issued
    stranger = certs.new_key().public_key()
    answers: list[tuple[str, Callable[..., IssuedIdentity]]] = [
        ("another key", lambda key, device: good(stranger, device)),
        ("another device", lambda key, device: replace(good(key, device), device="cellar")),
        ("another device", lambda key, device: replace(good(key, device), federation="other")),
        ("not a certificate", lambda key, device: replace(good(key, device), authority=b"trust me")),
        (
            "for a key that is not its own",
            lambda key, device: replace(good(key, device), authority=Authority.made().pem),
        ),
        ("not a certificate", lambda key, device: replace(good(key, device), certificate=b"me")),
    ]
    for said, answer in answers:
        federation.answered.clear()
        monkeypatch.setattr(federation, "issued", answer)
        with pytest.raises(BadPayload, match=said):
            ask(federation, folder)
        assert Keyring(folder.identity).identity() is None


# -- the end at any moment ------------------------------------------------------------------------------


def test_a_join_that_ends_between_any_two_steps_is_repaired_by_the_same_command(
    federation: Federation, tmp_path: Path
) -> None:
    crashed = 0
    for left in range(200):
        folder, federation.answered = DeviceFolder(tmp_path / str(left)), {}
        with pytest.MonkeyPatch.context() as patch:
            steps = Steps(left)
            for owner, name in (
                (os, "fsync"),
                (Path, "rename"),
                (Path, "unlink"),
                (EnrollmentClient, "challenge"),
                (EnrollmentClient, "join"),
            ):
                steps.around(patch, owner, name)
            try:
                ask(federation, folder)
            except Crash:
                crashed += 1
        if steps.left:
            break
        found = Keyring(folder.identity).identity()
        identity, new = ask(federation, folder)
        assert new == (found is None)
        assert found in (None, identity)
        assert len(federation.answered) == 1
        assert Keyring(folder.identity).identity() == identity
        assert folder.known_device() == "attic"
    assert crashed > 20


# -- where the line comes from --------------------------------------------------------------------------


def test_a_line_comes_as_itself_from_a_file_or_from_standard_input(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = federation.line
    (tmp_path / "join.txt").write_text(f"{line}\n")
    assert read_join_string(str(line)) == line
    assert read_join_string(str(tmp_path / "join.txt")) == line
    monkeypatch.setattr("sys.stdin", (tmp_path / "join.txt").open())
    assert read_join_string("-") == line


def test_a_line_that_is_none_is_not_repeated(federation: Federation, tmp_path: Path) -> None:
    text = str(federation.line)
    (tmp_path / "join.txt").write_bytes(b"\xff\xfe")
    for wrong in (text[:-2], text.replace("shoal1", "Shoal1"), text[8:], str(tmp_path / "join.txt")):
        with pytest.raises(ConfigError, match="join string") as caught:
            read_join_string(wrong)
        assert text[-20:-2] not in str(caught.value)
