"""The settings of a device: a file, and flags before it."""

from pathlib import Path

import pytest

from fedclient.config import DataConfig, LearnerConfig, read
from shoal.core.errors import ConfigError

FILE = """
server: 127.0.0.1:50051
insecure_loopback: true
learner: {builtin: lenet5, options: {classes: 10}}
data: {npz: train.npz, test: /data/test.npz, shape: [1, 28, 28], divide_by: 255}
compute: {threads: 2, nice: 10}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "device.yaml"
    path.write_text(FILE)
    return path


def test_paths_are_relative_to_the_file(file: Path) -> None:
    settings = read(file, {})
    assert settings.data == DataConfig(
        npz=file.parent / "train.npz", test=Path("/data/test.npz"), shape=(1, 28, 28), divide_by=255.0
    )
    assert settings.state == file.parent / "state"
    assert settings.learner == LearnerConfig(builtin="lenet5", options={"classes": 10})
    assert (settings.compute.device, settings.compute.threads) == ("auto", 2)


def test_flags_come_before_the_file(file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path.parent)
    settings = read(file, {"server": "127.0.0.1:1", "state": Path("elsewhere"), "device": None})
    assert settings.server == "127.0.0.1:1"
    assert settings.state == tmp_path.parent / "elsewhere"  # a flag is relative to where it was typed
    assert settings.device is None


def test_a_setting_of_an_earlier_version_does_nothing_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "device.yaml"
    file.write_text("server: 127.0.0.1:1\nblob_hosts: [s3.example.org]\n")
    assert read(file, {}).server == "127.0.0.1:1"
    assert "blob_hosts" in capsys.readouterr().err


def test_without_a_file_there_are_the_flags() -> None:
    assert read(None, {"device": "pi-17"}).device == "pi-17"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("learner: {}", "learner: set exactly one of builtin, file, module (none is set)"),
        ("learner: {builtin: a, file: b}", "(builtin and file are set)"),
        ("learner: {file: a.py, options: {x: 1}}", "options are only for a builtin learner"),
        (
            "data: {npz: a, csv: b}",
            "set exactly one of npz, csv, parquet, idx, images, module (npz and csv are set)",
        ),
        ("data: {npz: a, label: y}", "label goes with csv or parquet, not with npz"),
        ("data: {csv: a, labels: y}", "labels goes with idx, not with csv"),
        ("data: {npz: a, columns: [b]}", "columns goes with csv or parquet, not with npz"),
        ("data: {idx: a, ignore: [b]}", "ignore goes with csv or parquet, not with idx"),
        ("data: {csv: a, label: y, columns: [x, y]}", "columns contains 'y', which is the label"),
        ("data: {csv: a, label: y, ignore: [y]}", "ignore contains 'y', which is the label"),
        ("data: {csv: a, columns: [x, z, x]}", "columns ['x', 'z', 'x'] contains a name twice"),
        ("data: {csv: a, columns: [x], ignore: [x]}", "columns and ignore both contain 'x'"),
        ("data: {module: a, shape: [1]}", "test, shape and divide_by are for files"),
        ("data: {idx: a, test_labels: b}", "test_labels is set, but test is not"),
        ("data: {npz: a, divide_by: 0}", "divide_by is 0.0"),
        ("data: {npz: a, shape: [0]}", "shape [0] is impossible"),
        ("compute: {threads: 0}", "threads is 0"),
        ("compute: {nice: 20}", "nice is 20"),
        ("compute: {device: tpu}", "compute.device: expected auto or cpu or cuda, found 'tpu'"),
        ("limits: {download_bytes: 0}", "limits are numbers of bytes"),
        ("device: ../../etc", "'../../etc' is not a name"),
        ("device: a b", "'a b' is not a name"),
        ("sever: x", 'unknown setting sever (did you mean "server"?)'),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "device.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read(path, {})
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read(tmp_path / "none.yaml", {})
    (tmp_path / "latin.yaml").write_bytes(b"device: \xe9")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read(tmp_path / "latin.yaml", {})
