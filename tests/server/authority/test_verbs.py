"""The operators' commands about identities, against a real server over TLS: two let a device join."""

import asyncio
import io
import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedserver.authority.setup import init
from fedserver.store.identities.audit import Event
from shoal.core.exchange.link import Hello
from shoal.core.identity.certificates import pin_of
from shoal.core.identity.join import parse
from shoal.core.identity.joining import IssuedIdentity, Pending
from tests.server.authority.peers import Peer, lines_of
from tests.server.commands import Command, commands
from tests.server.processes import Daemon, daemon


@pytest.fixture
def command(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run `fedserver` with these arguments: its exit code, what it printed, what it said beside."""
    monkeypatch.setenv("FEDSERVER_STATE", str(tmp_path / "s"))
    return commands(capfd)


@contextmanager
def up(folder: Path) -> Iterator[Daemon]:
    """A server with certificates, as a process of its own."""
    init(folder / "s", ("127.0.0.1",), "127.0.0.1:0", "127.0.0.1:0", "shoal")
    with daemon(folder / "s", options=()) as running:
        yield running


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Daemon]:
    """A server that is this test's own."""
    with up(tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A server that tests share: each leaves it without a device that may call."""
    with up(tmp_path_factory.mktemp("lasting")) as running:
        yield running


@pytest.fixture
def shared(lasting: Daemon, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    """That server, as the one that commands go to."""
    monkeypatch.setenv("FEDSERVER_STATE", str(lasting.state))
    return lasting


def data(answer: tuple[int, str, str]) -> dict[str, Any]:
    code, out, err = answer
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)["data"]
    return found


def joined(join: str, name: str) -> Peer:
    """A device that has joined and called once."""
    peer = Peer(join, name)
    asyncio.run(peer.join())
    asyncio.run(hello(peer))
    return peer


async def hello(peer: Peer) -> None:
    async with peer.channel() as channel:
        await peer.link(channel).hello(Hello("toy"))


def test_a_device_from_its_join_string_to_its_end(command: Command, shared: Daemon) -> None:
    code, join, err = command("token", "create", "--label", "site=basel", "--ttl", "10m")
    assert code == 0
    assert "train, 0 of 1 used" in err
    peer = joined(join, "d0")  # the line is all that an owner needs
    assert (shared.state / "join-address").read_text().strip() == parse(join).address

    listed = data(command("device", "ls", "--json"))["devices"]
    (shown,) = [each for each in listed if each["standing"] != "revoked"]
    assert (shown["device"], shown["role"], shown["standing"]) == ("d0", "train", "approved")
    assert shown["labels"] == {"site": "basel"}
    assert shown["fingerprint"] == pin_of(peer.key.public_key()).hex()
    assert shown["last_seen"] is not None
    assert "site=basel" in command("device", "ls")[1]
    assert "d0: train, approved" in command("device", "show", "d0")[1]
    (token,) = [each for each in data(command("token", "ls", "--json"))["tokens"] if each["labels"]]
    assert token["used"] == 1
    assert "1 of 1 used" in command("token", "ls")[1]

    ended = data(command("device", "revoke", "d0", "--reason", "stolen", "--json"))
    assert (ended["standing"], ended["cut"], ended["counted"]) == ("revoked", 0, [])
    with pytest.raises(Exception, match="was revoked"):
        asyncio.run(hello(peer))
    line = lines_of(shared.state, Event.REVOKED)[-1]
    assert line["facts"] == {"device": "d0", "reason": "stolen"}


def test_the_list_of_tokens_says_which_still_admit_devices(command: Command, shared: Daemon) -> None:
    options = {
        "open": (),
        "half": ("--uses", 2),
        "used up": (),
        "expired": ("--ttl", "0.001s"),
        "revoked": (),
    }
    joins = {state: command("token", "create", *given)[1] for state, given in options.items()}
    names = {state: parse(join).token for state, join in joins.items()}
    asyncio.run(Peer(joins["half"], "first").join())
    asyncio.run(Peer(joins["used up"], "only").join())
    command("token", "revoke", names["revoked"])
    states = {each["token"]: each["state"] for each in data(command("token", "ls", "--json"))["tokens"]}
    lines = {line.split("  ")[0]: line for line in command("token", "ls")[1].splitlines()}
    for wanted, name in names.items():
        state = "open" if wanted == "half" else wanted
        assert states[name] == state
        assert lines[name].startswith(f"{name}  {state}  ")
    for device in ("first", "only"):
        assert command("device", "revoke", device)[0] == 0


def test_an_operator_and_an_owner_see_the_same_fingerprint(command: Command, shared: Daemon) -> None:
    peer = Peer(command("token", "create", "--hold")[1], "held")
    answer = asyncio.run(peer.join())
    assert isinstance(answer, Pending)
    grouped = " ".join(answer.fingerprint.hex()[start : start + 4] for start in range(0, 64, 4))
    shown = command("device", "show", "held")[1]
    assert grouped in shown
    assert "fedserver device approve held" in shown
    assert grouped in command("device", "approve", "held")[1]
    assert isinstance(asyncio.run(peer.join()), IssuedIdentity)
    assert command("device", "revoke", "held")[0] == 0


def test_approvals_that_wait_are_seen_and_given_together(
    command: Command, server: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    join = command("token", "create", "--hold", "--uses", "4")[1]
    peers = [Peer(join, name) for name in ("ward-1", "ward-2", "attic", "cellar")]
    answers = [asyncio.run(peer.join()) for peer in peers]
    prints = [
        " ".join(re.findall("....", each.fingerprint.hex())) for each in answers if isinstance(each, Pending)
    ]
    assert len(prints) == len(peers)
    status = command("status")[1]
    assert "0 of 0 known devices are connected" in status
    assert "attention: 4 devices wait for approval, attic, cellar, ward-1 and 1 more" in status
    assert "fedserver device approve --all" in status
    listed = command("device", "ls")[1]
    assert all(each in listed for each in prints)

    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    code, _, err = command("device", "approve", "ward-*")
    assert (code != 0, "approve these 2?" in err) == (True, True)
    assert all(each in err for each in prints[:2])
    assert not any(each in err for each in prints[2:])
    assert "4 devices wait" in command("status")[1]
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert "2 devices are approved" in command("device", "approve", "ward-*")[1]
    approved = data(command("device", "approve", "--all", "--yes", "--json"))["devices"]
    assert [(each["device"], each["standing"]) for each in approved] == [
        ("attic", "approved"),
        ("cellar", "approved"),
    ]
    assert command("device", "approve", "--all")[0] == 1
    assert command("device", "approve")[0] == 2
    status = command("status")[1]
    assert "attention" not in status
    assert "0 of 4 known devices are connected, 4 have not called yet" in status
    asyncio.run(peers[0].join())
    asyncio.run(hello(peers[0]))
    assert command("device", "revoke", "ward-2")[0] == 0
    found = data(command("status", "--json"))["devices"]
    assert [(each["device"], each["presence"]) for each in found] == [
        ("attic", "expected"),
        ("cellar", "expected"),
        ("ward-1", "idle"),
    ]
    assert command("run", "start", "toy", "--algorithm", "fedavg", "--devices", "4")[0] == 0
    assert (
        "attention: run toy wants 4 devices, and 3 can take part: admit more, or: "
        "fedserver run set toy --devices 3"
    ) in command("status")[1]


class Typed(io.StringIO):
    """What a person types at a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_person_is_asked_before_a_device_is_withdrawn_and_a_script_is_not(
    command: Command, shared: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def withdraw(stdin: io.StringIO, *options: str) -> tuple[int, bool, bool]:
        """The exit code, whether someone was asked, and whether the device is withdrawn."""
        monkeypatch.setattr("sys.stdin", stdin)
        code, _, err = command("device", "withdraw", "leaver", *options)
        standing = data(command("device", "show", "leaver", "--json"))["standing"]
        return code, "withdraw leaver? [y/N]" in err, standing == "withdrawn"

    joined(command("token", "create")[1], "leaver")
    assert withdraw(io.StringIO("y\n")) == (0, False, False)
    assert withdraw(Typed("y\n"), "--json") == (0, False, False)
    assert withdraw(Typed("n\n")) == (130, True, False)
    assert withdraw(Typed("y\n")) == (0, True, True)
    joined(command("token", "create")[1], "stayer")
    monkeypatch.setattr("sys.stdin", Typed())
    assert "device stayer is withdrawn" in command("device", "withdraw", "stayer", "--yes")[1]


def test_what_is_wrong_is_said_with_its_hint(command: Command, shared: Daemon) -> None:
    for arguments, code, message in (
        (("token", "create", "--ttl", "25h"), 3, "at most 24 h"),
        (("token", "create", "--ttl", "soon"), 3, "not a length of time"),
        (("token", "create", "--uses", 0), 3, "0 uses"),
        (("token", "create", "--label", "x"), 3, "not NAME=VALUE"),
        (("token", "create", "--role", "root"), 2, "root"),
        (("token", "revoke", "nope"), 1, "no token 'nope'"),
        (("device", "show", "nope"), 1, "no device 'nope'"),
        (("device", "approve", "nope"), 1, "no device 'nope'"),
        (("device", "revoke", "nope"), 1, "no device 'nope'"),
        (("audit", "verify", "--expect", "1:x"), 3, "not NUMBER:HASH"),
        (("audit", "verify", "--state", "/nowhere"), 1, "/nowhere/audit.jsonl does not exist"),
    ):
        found, _, err = command(*arguments)
        assert (found, message in err) == (code, True), (arguments, err)


def test_the_server_gets_another_key_by_a_command(command: Command, shared: Daemon) -> None:
    peer = joined(command("token", "create")[1], "d1")
    rotated = data(command("authority", "rotate", "--json"))
    assert rotated["operators"] == []
    asyncio.run(peer.come_back())
    assert peer.pin.hex() == rotated["fingerprint"] != peer.string.pin.hex()
    asyncio.run(hello(peer))
    assert command("device", "revoke", "d1")[0] == 0


def test_a_device_that_was_installed_again_is_approved_by_its_name_and_what_was_paid_is_shown(
    command: Command, shared: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = joined(command("token", "create")[1], "d2")
    again = Peer(command("token", "create")[1], "d2", shared.address)
    assert isinstance(asyncio.run(again.join()), Pending)
    assert "to take the place of its key" in command("device", "show", "d2")[1]
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    code, _, err = command("device", "approve", "d2")
    assert (code, "hint: give --yes" in err) == (130, True)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    code, _, err = command("device", "approve", "d2")
    assert (code, "--yes" in err) == (130, False)
    old, new = (pin_of(each.key.public_key()).hex() for each in (former, again))
    shown = " ".join(re.findall("....", new))
    assert shown in err
    assert re.search(f"^d2  .* waits to replace it .* {shown}$", command("device", "ls")[1], re.MULTILINE)
    assert f"d2 had the key {old[:8]}, and has paid: nothing that this server knows of" in err
    asyncio.run(hello(former))
    approved = data(command("device", "approve", "d2", "--yes", "--json"))["devices"]
    assert [(each["fingerprint"], each["successor"]) for each in approved] == [(new, None)]
    asyncio.run(again.join())
    asyncio.run(hello(again))
    third = Peer(command("token", "create")[1], "d2")
    asyncio.run(third.join())
    assert "keeps the key" in command("device", "revoke", "d2", "--waiting")[1]
    asyncio.run(hello(again))
    assert command("device", "revoke", "d2")[0] == 0


def test_a_killed_server_knows_what_it_did_and_its_log_is_whole(
    command: Command, server: Daemon, tmp_path: Path
) -> None:
    join = command("token", "create")[1]
    peer = joined(join, "d0")
    server.stop(signal.SIGKILL)
    file = server.state / "audit.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    assert command("audit", "verify")[0] == 1  # a crash between the table and the file looks like this
    with daemon(server.state, options=()) as again:
        host, _, port = (again.state / "join-address").read_text().strip().rpartition(":")
        peer.string = replace(peer.string, host=host, port=int(port))
        asyncio.run(peer.join())
        peer.address = again.address
        asyncio.run(hello(peer))
        code, out, _ = command("audit", "verify")
        assert (code, "all intact" in out) == (0, True)
        head = out.split()[-1]
        assert again.stop() == 0
    assert command("audit", "verify", "--expect", head)[0] == 0
    assert command("audit", "verify", "--expect", f"3:{'0' * 64}")[0] == 1
    events = [line["event"] for line in data(command("audit", "show", "--json"))["lines"]]
    assert events == ["init", "start", "token-created", "joined", "start", "stop"]
    assert "joined" in command("audit", "show", "--device", "d0", "--last", 1)[1]
    file.write_text(file.read_text().replace('"d0"', '"d1"', 1))
    code, _, err = command("audit", "verify")
    assert (code, "line 4 of audit.jsonl" in err) == (1, True)


def test_no_secret_is_in_any_file_or_log(command: Command, server: Daemon) -> None:
    joins = [command("token", "create", "--uses", uses)[1].strip() for uses in (1, 2)]
    peer = joined(joins[0], "d0")
    with pytest.raises(Exception, match="does not let this device in"):
        asyncio.run(Peer(joins[0], "d1").join())
    with pytest.raises(Exception, match="does not let this device in"):
        asyncio.run(Peer(joins[1], "d1").join(proof=b"x" * 32))
    with pytest.raises(Exception, match="not a certificate request"):
        asyncio.run(Peer(joins[1], "d1").join(csr=b"x"))
    said = "".join(command(*verb)[1] for verb in (("token", "ls", "--json"), ("device", "ls", "--json")))
    command("token", "revoke", parse(joins[1]).token)
    assert server.stop() == 0
    written = b"".join(path.read_bytes() for path in server.state.rglob("*") if path.is_file())
    written += server.log.read_bytes() + said.encode() + server.said.read().encode()
    for join in map(parse, joins):
        assert join.secret not in written
        assert str(join).rpartition(":")[2].encode() not in written
        assert join.secret.hex().encode() not in written
    assert b"token-created" in written
    assert peer.issued is not None


def test_a_key_that_others_may_read_stops_the_start(command: Command, tmp_path: Path) -> None:
    assert command("init", "--host", "127.0.0.1")[0] == 0
    (tmp_path / "s" / "authority" / "server.pem").chmod(0o644)
    code, _, err = command("up")
    assert (code, "chmod 600" in err, "0644" in err) == (3, True, True)


def test_init_twice_changes_nothing_and_says_so(command: Command, tmp_path: Path) -> None:
    code, out, _ = command("init", "--host", "a.example.org")
    assert code == 0
    assert f"fedserver up --state {tmp_path / 's'}" in out
    assert "fedserver token create" in out
    code, out, _ = command("init", "--host", "b.example.org", "--json")
    assert code == 0
    assert json.loads(out)["data"]["made"] == []
    _, out, _ = command("init", "--host", "b.example.org")
    assert "nothing was changed" in out
    assert "fedserver.yaml" in out
    assert command("init")[0] == 0
    code, _, err = command("init", "--state", "/dev/null/x")
    assert code != 0
    assert "--host" in err


def test_without_certificates_the_verbs_say_how_to_get_them(command: Command, tmp_path: Path) -> None:
    with daemon(tmp_path / "s"):
        code, _, err = command("token", "create")
        assert (code, "fedserver init" in err) == (3, True)
