"""Verbs around a device's life: new, doctor, service, leave, completion, and what place --follow does."""

import asyncio
import errno
import io
import json
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from fedclient.__main__ import main
from fedclient.cli.setup import doctor as doctor_module
from fedclient.config import ClientConfig, LimitsConfig
from fedclient.placing.follow import announce, command_of, follow
from fedclient.store.ledger import Ledger
from shoal.core.errors import ConfigError, DataFault, DiskFull, ShoalError, Unavailable

Verb = Callable[..., Any]


@pytest.fixture
def verb(capfd: pytest.CaptureFixture[str]) -> Verb:
    def call(*arguments: str | Path, code: int = 0) -> Any:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*map(str, arguments), "--json"], prog_name="fedclient")
        out = capfd.readouterr()
        assert ended.value.code == code, out.err
        found = json.loads(out.out)
        return found["error"] if code and not found["data"] else found["data"]

    return call


def test_what_new_writes_works_at_once(tmp_path: Path, verb: Verb) -> None:
    folder = tmp_path / "attic"
    verb("new", folder)
    found = verb("check", "--config", folder / "device.yaml")
    assert found["classes"] == {"0": 120, "1": 120}
    assert found["latent"] == [64, 16]
    assert found["accuracy"] > 0.4
    before = (folder / "learner.py").read_bytes()
    (folder / "device.yaml").unlink()
    refused = verb("new", folder, code=3)
    assert refused["message"] == f"{folder} already has learner.py, data.csv"
    assert (folder / "learner.py").read_bytes() == before
    assert not (folder / "device.yaml").exists()


def test_the_commands_that_new_names_are_all_for_the_new_device(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its identity is in its own folder, which only its settings name."""
    folder = tmp_path / "attic"
    with pytest.raises(SystemExit):
        main(["new", str(folder)], prog_name="fedclient")
    _, *lines = capfd.readouterr().out.splitlines()
    assert [line.split()[line.split().index("fedclient") + 1] for line in lines] == ["check", "join", "run"]
    assert all(line.endswith(f" --config {folder / 'device.yaml'}") for line in lines)


def test_doctor_names_what_does_not_work_and_what_to_do(
    tmp_path: Path, verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    verb("new", tmp_path / "attic")
    settings, state = tmp_path / "attic" / "device.yaml", tmp_path / "attic" / "state"
    found = verb("doctor", "--config", settings, code=1)
    by_name = {each["what"]: each for each in found["findings"]}
    assert list(by_name) == ["packages", "disk", "agent", "identity"]
    assert by_name["packages"]["text"].startswith("torch ")
    assert not by_name["packages"]["hint"]
    assert by_name["identity"]["text"].endswith("this device has not joined")
    assert by_name["identity"]["hint"]
    assert found["well"] is False
    assert not state.exists()
    (tmp_path / "torch.py").write_text("import os\nos.abort()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    broken = verb("doctor", "--config", settings, code=1)["findings"][0]
    assert broken["text"] == "torch cannot be loaded: it ended with code -6"
    assert broken["hint"] == "pip install torch"
    monkeypatch.setattr(doctor_module, "IMPORTS", 1e-4)
    slow = verb("doctor", "--config", settings, code=1)["findings"][0]
    assert slow["text"].startswith("torch was not loaded within")


@pytest.mark.parametrize(("kept", "well"), [(1 << 30, True), (3 << 30, False), (8 << 30, True)])
def test_doctor_holds_the_disk_against_a_limit_that_someone_has_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int, well: bool
) -> None:
    settings = ClientConfig(state=tmp_path, limits=LimitsConfig(kept_bytes=kept))
    space = os.statvfs(tmp_path)
    free = os.statvfs_result((space.f_bsize, 1024, 1 << 22, 1 << 21, 1 << 21, *tuple(space)[5:]))
    monkeypatch.setattr(os, "statvfs", lambda path: free)  # with 2 GiB free
    assert doctor_module._disk(settings).well is well


def test_a_device_that_leaves_keeps_only_its_ledger(
    tmp_path: Path, verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    for name in (
        "identity/identity.json",
        "blobs/x",
        "model/model.safetensors",
        "model-next/model.safetensors",
        "shadow/model.safetensors",
        "watch/reference-1.npz",
        "privacy/ledger",
        "mark",
        "trained.json",
        "agent.log",
    ):
        (state / name).parent.mkdir(parents=True, exist_ok=True)
        (state / name).write_text("x")
    refused = verb("leave", "--state", state, "--yes", code=3)
    assert "is not the folder of a device" in refused["message"]
    (state / "device").write_text("attic\n")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert "--yes" in verb("leave", "--state", state, code=130)["hint"]
    assert (state / "mark").exists()
    assert verb("leave", "--state", state, "--yes")["device"] == "attic"
    assert sorted(str(path.relative_to(state)) for path in state.rglob("*") if path.is_file()) == [
        "device",
        "lock",
        "privacy/ledger",
    ]


def test_a_unit_runs_the_device_with_its_settings(
    tmp_path: Path, verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = tmp_path / "100 %" / "device.yaml"
    verb("new", settings.parent)
    unit = tmp_path / ".config" / "systemd" / "user" / "fedclient.service"
    written = verb("service", "install", "--config", settings)
    assert written["path"] == str(unit)
    assert unit.read_text() == written["unit"]
    (command,) = (line for line in unit.read_text().splitlines() if line.startswith("ExecStart="))
    assert f"--config '{str(settings).replace('%', '%%')}'" in command
    assert "RestartPreventExitStatus=3 5 7" in unit.read_text()
    assert verb("service", "install", "--config", tmp_path / "none.yaml", code=3)


def test_a_device_whose_models_fill_the_disk_can_leave(
    tmp_path: Path, verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    (state / "blobs").mkdir(parents=True)
    (state / "blobs" / "a").write_bytes(b"as large as the disk")
    (state / "device").write_text("attic\n")
    noted = list[str]()

    def give_back(ledger: Ledger, runs: Collection[str]) -> None:
        if (state / "blobs").exists():
            raise DiskFull("no room for the line", "free some space")
        noted.append("given back")

    monkeypatch.setattr(Ledger, "keep_only", give_back)
    verb("leave", "--state", state, "--yes")
    assert noted == ["given back"]


def test_a_device_that_leaves_is_told_of_its_unit(
    tmp_path: Path, verb: Verb, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    state, said = tmp_path / "state", []
    state.mkdir()
    (state / "device").write_text("attic\n")
    for _ in range(2):
        with pytest.raises(SystemExit):
            main(["leave", "--state", str(state), "--yes"], prog_name="fedclient")
        said.append("systemctl --user disable --now fedclient" in capfd.readouterr().out)
        verb("new", tmp_path / str(len(said)))
        verb("service", "install", "--config", tmp_path / str(len(said)) / "device.yaml")
    assert said == [False, True]


@pytest.mark.parametrize(
    ("shell", "line"),
    [
        ("/bin/bash", 'eval "$(_FEDCLIENT_COMPLETE=bash_source fedclient)"'),
        ("/usr/bin/zsh", 'eval "$(_FEDCLIENT_COMPLETE=zsh_source fedclient)"'),
        ("fish", "_FEDCLIENT_COMPLETE=fish_source fedclient | source"),
    ],
)
def test_completion_prints_the_line_for_the_shell(
    verb: Verb, monkeypatch: pytest.MonkeyPatch, shell: str, line: str
) -> None:
    monkeypatch.setenv("SHELL", shell)
    assert verb("completion")["line"] == line
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert "SHELL=zsh fedclient completion" in verb("completion", code=3)["hint"]


def test_the_hook_runs_once_for_each_model_and_again_after_it_failed(tmp_path: Path) -> None:
    said: list[str] = []
    log = tmp_path / "log"
    hook = command_of(
        f"sh -c 'echo $SHOAL_CLUSTER $SHOAL_RUN $SHOAL_MODEL >> {log}; test $SHOAL_CLUSTER = c0'"
    )

    def placed(cluster: str, model: str | None) -> bool:
        placement = {"run": "digits", "cluster": cluster, "model": model}
        (tmp_path / "placement.json").write_text(json.dumps(placement))
        return announce(tmp_path, hook, said.append)

    assert not announce(tmp_path, hook, said.append)
    assert not placed("c0", None)
    assert placed("c0", "a" * 64)
    assert not placed("c0", "a" * 64)
    assert placed("c1", "b" * 64)
    assert placed("c1", "b" * 64)
    assert "ended with code 1 and runs again" in said[-1]
    assert placed("c0", "b" * 64)
    assert not placed("c0", "b" * 64)
    lines = log.read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["c0", "c1", "c1", "c0"]
    assert placed("c\0d", "c" * 64), "a server may name a cluster so; no program can get that name"
    assert said[-1].startswith("the hook cannot run: no program can get the name of this cluster or run")
    (tmp_path / "followed").write_bytes(b"\xff")
    assert placed("c0", "c" * 64)
    assert len(log.read_text().splitlines()) == 5
    assert lines[0].split()[1:] == ["digits", str(tmp_path / "model.safetensors")]
    with pytest.raises(ConfigError, match="cannot be read"):
        command_of("echo 'x")


def test_a_note_of_the_last_hook_that_the_disk_has_lost_runs_it_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bare error would end the program that follows, after each start again."""
    (tmp_path / "placement.json").write_text(json.dumps({"model": "a" * 64}))
    assert announce(tmp_path, [], [].append)
    read = Path.read_bytes

    def lost(path: Path) -> bytes:
        if path.name == "followed":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return read(path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", lost)
        assert announce(tmp_path, [], [].append)
    assert not announce(tmp_path, [], [].append)


def test_a_device_that_follows_ends_for_a_fault_at_the_beginning_and_for_none_later() -> None:
    """Later no one is there to start it again once the disk has room, or the data are whole."""
    said: list[str] = []

    async def followed(*story: ShoalError | None) -> None:
        steps = iter(story)

        async def place() -> None:
            fault = next(steps, asyncio.CancelledError())
            if fault is not None:
                raise fault

        await follow(place, lambda: None, 0.0, said.append)

    with pytest.raises(DataFault):
        asyncio.run(followed(Unavailable("away"), DataFault("half a file")))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(followed(None, DataFault("half a file"), DiskFull("full"), None))
    assert [line.rpartition(": ")[2] for line in said] == ["away", "half a file", "full"]
