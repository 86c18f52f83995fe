"""Settings of a server and of a run: files, flags before them, and errors that name the key."""

from pathlib import Path
from typing import Any

import pytest

from fedserver.addresses import host_and_port
from fedserver.config import SETTINGS, LearnerConfig, ServerConfig, read_run, read_server
from fedserver.ha.bucket import BucketAddress
from fedserver.store.engines import Elsewhere
from fedserver.store.records import RunSpec
from shoal.core.algorithms.flux import ALGORITHM
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.errors import ConfigError
from shoal.shell.config import parsed

RUN = """
name: digits
algorithm: flux
preset: paper
parameters: {rounds: 20, privacy: "off"}
policy: {devices: 8, minimum: 6, deadline: 600}
seed: 7
initial_weights: first.safetensors
learner: {file: nets/learner.py}
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    return path


def served(state: Path, text: str) -> ServerConfig:
    """The settings of a server whose state folder has this file."""
    (state / SETTINGS).write_text(text)
    return read_server({"state": state})


def test_a_run_file_says_it_all_and_its_paths_are_its_own(tmp_path: Path) -> None:
    config = read_run(written(tmp_path, RUN), {})
    assert config.initial_weights == tmp_path / "first.safetensors"
    assert config.learner == LearnerConfig(file=tmp_path / "nets" / "learner.py")
    policy = RoundPolicy(devices=8, minimum=6, deadline=600.0)
    parameters: dict[str, int | str] = {"rounds": 20, "privacy": "off"}
    learner = str(tmp_path / "nets" / "learner.py")
    assert config.spec() == RunSpec(
        "digits", "flux", "paper", parameters, policy, 7, learner, learner_seed=42
    )


def test_nothing_has_to_be_set() -> None:
    found = read_run(None, {"name": "digits"})
    assert found.spec() == RunSpec("digits", "flux")


def test_flags_come_before_the_file_setting_by_setting(tmp_path: Path) -> None:
    flags: dict[str, Any] = {
        "name": "other",
        "seed": None,
        "parameters": {"rounds": 3},
        "policy": {"minimum": 8, "deadline": None},
        "initial_weights": Path("mine.safetensors"),
        "learner": {"builtin": None, "file": None, "options": {}, "seed": None},
    }
    config = read_run(written(tmp_path, RUN), flags)
    assert (config.name, config.seed) == ("other", 7)
    assert config.parameters == {"rounds": 3, "privacy": "off"}
    assert config.policy == RoundPolicy(devices=8, minimum=8, deadline=600.0)
    assert config.initial_weights == Path("mine.safetensors").absolute()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("algorithm: flux\nround: 3", "unknown setting round"),
        ("algorithm: flux\npolicy: {minimum: 3, devices: 2}", "policy: a round of 2 devices"),
        ("algorithm: flux\npolicy: {deadlin: 3}", 'did you mean "deadline"'),
        ("algorithm: flux\nlearner: {}", r"exactly one of builtin and file \(none is set\)"),
        ("algorithm: flux\nlearner: {file: a.py, options: {x: 1}}", "options are only for a built-in"),
        ("algorithm: flux\nseed: -1", "seed is -1"),
        ("algorithm: flux\nparameters: {rounds: [1]}", "parameters.rounds"),
    ],
)
def test_a_wrong_run_file_is_refused_by_the_key(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_run(written(tmp_path, text), {})


def test_a_server_file_and_its_flags(tmp_path: Path) -> None:
    (tmp_path / SETTINGS).write_text("insecure_loopback: true\ncadence: {poll: 5, grace: 1}\n")
    config = read_server({"listen": "127.0.0.1:0", "state": tmp_path, "insecure_loopback": None})
    assert (config.state, config.insecure_loopback) == (tmp_path, True)
    assert (config.listen, config.cadence.poll, config.cadence.heartbeat) == ("127.0.0.1:0", 5.0, 10.0)
    with pytest.raises(ConfigError, match="poll, heartbeat"):
        served(tmp_path, "insecure_loopback: true\ncadence: {poll: 0}")
    with pytest.raises(ConfigError, match=r"fedserver\.yaml: unknown setting states"):
        served(tmp_path, "states: x")


def test_a_state_folder_brings_its_own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s").mkdir()
    assert read_server({"state": tmp_path / "s"}).hosts == ()
    (tmp_path / "s" / SETTINGS).write_text("state: .\nhosts: [shoal.example.org]\nlisten: 0.0.0.0:1\n")
    config = read_server({"state": tmp_path / "s", "listen": "0.0.0.0:2"})
    assert (config.state, config.hosts, config.listen) == (
        tmp_path / "s",
        ("shoal.example.org",),
        "0.0.0.0:2",
    )
    (tmp_path / "s").rename(tmp_path / "server")
    monkeypatch.chdir(tmp_path)
    assert read_server({}).hosts == ("shoal.example.org",), "the folder's name where nothing says another"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: No such file"):
        read_run(tmp_path / "none.yaml", {})
    (tmp_path / "latin.yaml").write_bytes(b"name: \xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_run(tmp_path / "latin.yaml", {})


@pytest.mark.parametrize("text", ["off", "no", "3"])
def test_a_parameter_that_is_a_text_is_what_was_written(tmp_path: Path, text: str) -> None:
    in_file = read_run(written(tmp_path, f"algorithm: flux\nparameters: {{privacy: {text}, rounds: 3}}"), {})
    by_flags = read_run(None, {"algorithm": "flux-soft", "parameters": dict([parsed(f"privacy={text}")])})
    assert in_file.spec().parameters == {"privacy": text, "rounds": 3}
    assert by_flags.spec().parameters == {"privacy": text}
    assert ALGORITHM.configure("default", dict([parsed("privacy=off")])).privacy == "off"
    with pytest.raises(
        ConfigError,
        match="flux: parameter rounds cannot be False; expected auto, or a whole number of at least 1",
    ):
        ALGORITHM.configure("default", dict([parsed("rounds=off")]))
    with pytest.raises(ConfigError, match="no algorithm 'fluks'"):
        read_run(None, {"algorithm": "fluks"}).spec()


def test_where_the_store_is_and_which_servers_there_are(tmp_path: Path) -> None:
    text = "database: postgresql://shoal@db/shoal\nblobs: ../shared\naddresses: ['a.example:1', '[::1]:2']\n"
    config = served(tmp_path, text)
    assert config.elsewhere == Elsewhere("postgresql://shoal@db/shoal", tmp_path / "../shared")
    assert config.addresses == ("a.example:1", "[::1]:2")
    assert served(tmp_path, "listen: 127.0.0.1:1\n").elsewhere is None


def test_blobs_may_be_in_a_bucket(tmp_path: Path) -> None:
    text = "database: postgresql://shoal@db/shoal\nblobs: s3://models/fleet?endpoint_url=https://s3.example\n"
    found = served(tmp_path, text).elsewhere
    bucket = BucketAddress("models", "fleet/", "https://s3.example")
    assert found == Elsewhere("postgresql://shoal@db/shoal", bucket)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("database: postgresql://shoal@db/shoal", "belong together"),
        ("database: postgresql://shoal@db/shoal\nblobs: s3://Models", "not the name of a bucket"),
        ("blobs: shared", "belong together"),
        ("addresses: [a.example]", "is not HOST:PORT"),
        (f"addresses: [{', '.join(f'a{number}:1' for number in range(17))}]", "more than 16"),
    ],
)
def test_settings_of_several_servers_that_cannot_be_are_refused(
    tmp_path: Path, text: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        served(tmp_path, text)


@pytest.mark.parametrize("name", ["listen", "join_listen", "operator_listen", "metrics", "addresses"])
@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("0.0.0.0:99999", "99999 in '0.0.0.0:99999' is not a port"),
        ("0.0.0.0:65536", "is not a port"),
        ("0.0.0.0", "is not HOST:PORT"),
        ("50061", "is not HOST:PORT"),
        ("0.0.0.0:", "is not HOST:PORT"),
        (":50051", "is not HOST:PORT"),
        ("0.0.0.0:http", "is not HOST:PORT"),
        ("::1:50051", "is not HOST:PORT"),
        ("http://127.0.0.1:50051", "is not HOST:PORT"),
    ],
)
def test_an_address_that_cannot_be_is_refused_whatever_setting_has_it(
    tmp_path: Path, name: str, address: str, reason: str
) -> None:
    text = f"{name}: ['{address}']" if name == "addresses" else f"{name}: '{address}'"
    with pytest.raises(ConfigError, match=f"{name}: .*{reason}"):
        served(tmp_path, text)
    with pytest.raises(ConfigError, match=reason):
        read_server({name: [address] if text.endswith("]") else address})


def test_port_0_is_one_to_listen_at_and_not_one_to_call(tmp_path: Path) -> None:
    assert served(tmp_path, "listen: '[::1]:0'").listen == "[::1]:0"
    assert host_and_port("listen", "[::1]:0") == ("[::1]", 0)
    assert host_and_port("listen", "localhost:65535") == ("localhost", 65535)
    with pytest.raises(ConfigError, match="use a port from 1 to 65535"):
        served(tmp_path, "addresses: ['a.example:0']")
