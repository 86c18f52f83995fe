"""`fedserver operator`, and what a person does with the folder that it makes, from the command line."""

import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedserver.__main__ import main
from fedserver.authority.setup import init
from fedserver.rpc.channel import CARD, KEY
from shoal.client import Client
from tests.server.processes import Daemon, add_settings, daemon

Command = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    """Run `fedserver ... --json`: its exit code and its answer."""

    def run(*arguments: object) -> tuple[int, dict[str, Any]]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*map(str, arguments), "--json"])
        return int(ended.value.code or 0), json.loads(capfd.readouterr().out)

    return run


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    monkeypatch.chdir(tmp_path)
    init(tmp_path / "server", ("127.0.0.1", "localhost"), "127.0.0.1:0", "127.0.0.1:0", "shoal")
    add_settings(tmp_path / "server", "operator_listen: 127.0.0.1:0\n")
    with daemon(tmp_path / "server", options=()) as running:
        yield running


def test_a_viewer_looks_and_an_operator_acts_until_revoked(server: Daemon, command: Command) -> None:
    code, made = command("operator", "add", "anna")
    assert (code, made["data"]["role"], made["data"]["folder"]) == (0, "viewer", str(Path("anna").absolute()))
    assert {stat.S_IMODE(Path("anna", name).stat().st_mode) for name in (".", KEY)} == {0o700, 0o600}
    command("operator", "add", "bert", "--role", "operator", "--out", "b")
    assert command("status", "--connect", "anna")[0] == 0
    code, refused = command("token", "create", "--connect", "anna")
    assert (code, refused["error"]["code"]) == (5, "refused")
    assert "with the role viewer may not call CreateToken" in refused["error"]["message"]
    assert command("token", "create", "--connect", "b")[0] == 0
    assert command("operator", "ls", "--connect", "b")[0] == 5
    assert command("operator", "revoke", "bert", "--reason", "left")[1]["data"]["revoked"] is True
    code, refused = command("run", "ls", "--connect", "b")
    assert (code, refused["error"]["code"]) == (5, "revoked")
    listed = {each["operator"]: each["revoked"] for each in command("operator", "ls")[1]["data"]["operators"]}
    assert listed == {"anna": False, "bert": True}
    lines = command("audit", "show")[1]["data"]["lines"]
    assert [line["facts"].get("operator") for line in lines if line["event"] == "token-created"] == ["bert"]
    with Client("anna") as client:
        assert client.runs() == {}


def test_what_cannot_work_says_why(server: Daemon, command: Command) -> None:
    assert command("operator", "add", "anna", "--out", "a")[0] == 0
    code, taken = command("operator", "add", "anna", "--out", "a")
    assert "exists already" in taken["error"]["message"]
    code, both = command("status", "--state", "server", "--connect", "a")
    assert (code, "both given" in both["error"]["message"]) == (3, True)
    code, none = command("status", "--connect", "server")
    assert (code, "not the folder of an operator's certificate" in none["error"]["message"]) == (3, True)
    server.stop()
    code, away = command("status", "--connect", "a")
    assert (code, "no server answers operators at 127.0.0.1:" in away["error"]["message"]) == (4, True)
    code, away = command("status", "--connect", "a", "--wait", "0.2")
    assert code == 4
    assert command("operator", "add", "../anna", "--out", "c")[0] == 4  # no server: and no folder either
    assert not Path("c").exists()


def test_a_server_that_does_not_listen_says_how_it_would(tmp_path: Path, command: Command) -> None:
    init(tmp_path / "s", ("127.0.0.1",), "127.0.0.1:0", "127.0.0.1:0", "shoal")
    with daemon(tmp_path / "s", options=()):
        folder = tmp_path / "anna"
        code, off = command("operator", "add", "anna", "--state", tmp_path / "s", "--out", folder)
    assert code == 3
    assert "operator_listen: 0.0.0.0:50053" in off["error"]["hint"]
    assert not folder.exists()


def test_the_folder_says_where_to_call(server: Daemon, command: Command) -> None:
    """A name with the addresses of two servers leads to the one that listens, which is the one that leads."""
    code, made = command("operator", "add", "anna", "--address", "anna.example.org")
    assert (code, "is not HOST:PORT" in made["error"]["message"]) == (3, True)
    assert not Path("anna").exists()
    port = command("operator", "add", "anna")[1]["data"]["address"].rpartition(":")[2]
    made = command("operator", "add", "anna", "--address", f"localhost:{port}", "--out", "b")[1]
    assert (
        made["data"]["address"] == json.loads(Path("b", CARD).read_text())["address"] == f"localhost:{port}"
    )
    assert command("status", "--connect", "b")[0] == 0
