"""`fedserver run history` and `run export`: what is printed, and tables that other programs read."""

import asyncio
import csv
import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from fedserver.__main__ import main
from fedserver.cli.runs.curves import write_events
from fedserver.cli.runs.tables import COLUMNS, write_tables
from fedserver.rpc.client import OperatorClient
from shoal.core.errors import ConfigError
from shoal.core.server_kit.history.records import ClusterRound, DeviceRound, RoundHistory, RunEvent
from tests.core.server_kit.history.test_packed import ROUND
from tests.server.processes import daemon
from tests.server.servers import DEVICES, ROUNDS, spec
from tests.server.test_daemon import all_devices
from tests.server.toys import MODEL


def test_the_rounds_of_a_run_are_printed_and_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, out = tmp_path / "s", tmp_path / "history"

    def verb(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["run", *arguments, "--state", str(state)])
        assert ended.value.code == 0
        return capsys.readouterr().out

    with daemon(state) as server:
        with OperatorClient(state) as client:
            client.start_run(spec(), MODEL)
        assert "no round is over yet" in verb("history", "toy")
        asyncio.run(all_devices(server.address))
        shown = verb("history", "toy")
        assert "training round 3 of 3: one model for all" in shown
        assert "final evaluation" in shown
        assert "d0" not in shown.replace("update of d0", "")
        last = verb("history", "toy", "--rounds", "1", "--devices")
        assert "training" not in last
        assert all(f"d{number}" in last for number in range(DEVICES))
        found = json.loads(verb("history", "toy", "--devices", "--json"))["data"]["rounds"]
        assert [each["round"] for each in found] == list(range(1, ROUNDS + 2))
        assert all(len(each["devices"]) == DEVICES for each in found)
        verb("export", "toy", "--csv", str(out))
        with pytest.raises(SystemExit) as ended:
            main(["run", "export", "toy", "--state", str(state)])
        assert ended.value.code == 3
        assert "give --csv DIR, --parquet DIR or --tensorboard DIR" in capsys.readouterr().err
    rows = list(csv.DictReader((out / "devices.csv").open()))
    assert [(row["round"], row["device"]) for row in rows] == [
        (str(number), f"d{device}") for number in range(1, ROUNDS + 2) for device in range(DEVICES)
    ]
    assert float(rows[0]["loss"]) == found[0]["devices"][0]["loss"]
    assert json.loads((out / "run.json").read_text())["seed"] == spec().seed


def test_tables_have_all_columns(tmp_path: Path) -> None:
    files = write_tables(tmp_path, "csv", {"run": "toy"}, [ROUND, RoundHistory(8)])
    assert [path.name for path in files] == [*(f"{name}.csv" for name in COLUMNS), "run.json"]
    for name, columns in COLUMNS.items():
        assert next(csv.reader((tmp_path / f"{name}.csv").open())) == columns
    first, second = csv.DictReader((tmp_path / "clusters.csv").open())
    assert (first["parents"], first["loss"], second["loss"]) == ("c0 c2", "0.25", "")


def test_without_pyarrow_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match="pyarrow, which is not installed"):
        write_tables(tmp_path, "parquet", {}, [ROUND])
    assert not list(tmp_path.iterdir())


def test_parquet_has_the_same_tables(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra data")
    write_tables(tmp_path, "parquet", {"run": "toy"}, [ROUND, RoundHistory(8)])
    for name, columns in COLUMNS.items():
        assert parquet.read_table(tmp_path / f"{name}.parquet").column_names == columns
    first, second = parquet.read_table(tmp_path / "clusters.parquet").to_pylist()
    assert (first["parents"], first["loss"], second["loss"]) == ("c0 c2", 0.25, None)


FIRST = RoundHistory(
    1,
    ended=1e9,
    measured_on="held_out",
    loss=0.5,
    accuracy=0.5,
    clusters=(ClusterRound("c0", devices=3, loss=0.25, accuracy=0.75),),
)


def test_without_tensorboards_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ConfigError, match="tensorboardX, which is not installed"):
        write_events(tmp_path / "curves", "toy", [FIRST])
    assert not list(tmp_path.iterdir())


def test_tensorboard_gets_the_curves(tmp_path: Path) -> None:
    Event = pytest.importorskip("tensorboardX.proto.event_pb2", reason="needs the extra tensorboard").Event
    second = RoundHistory(2, ended=1e9 + 60, asked=4, events=(RunEvent("grouped", "into 2 clusters"),))
    for rounds in ([FIRST], [FIRST, second]):  # another export takes the place of the one before
        path = write_events(tmp_path / "curves", "toy", rounds)
    assert list(path.parent.iterdir()) == [path]
    data, found = path.read_bytes(), dict[tuple[str, int], Any]()
    while data:  # a record: its length, a checksum, the event and another checksum
        (size,) = struct.unpack("<Q", data[:8])
        event = Event.FromString(data[12 : 12 + size])
        found.update({(value.tag, event.step): (value, event.wall_time) for value in event.summary.value})
        data = data[16 + size :]
    points = {key: (value.simple_value, wall) for key, (value, wall) in found.items()}
    assert points["accuracy/held_out", 1] == (0.5, 1e9)
    assert points["accuracy_held_out/c0", 1] == (0.75, 1e9)
    assert points["devices/c0", 1] == (3.0, 1e9)
    assert points["round/devices_asked", 2] == (4.0, 1e9 + 60)
    assert ("accuracy/held_out", 2) not in points
    (text,) = (value for (tag, _), (value, _) in found.items() if tag.startswith("events/grouped"))
    assert text.tensor.string_val == [b"into 2 clusters"]


def test_a_spreadsheet_computes_no_text_of_a_device(tmp_path: Path) -> None:
    hostile = RoundHistory(1, devices=(DeviceRound("d0", missing='=HYPERLINK("http://x")'),))
    write_tables(tmp_path, "csv", {}, [hostile])
    (row,) = csv.DictReader((tmp_path / "devices.csv").open())
    assert row["missing"].startswith("'=")
