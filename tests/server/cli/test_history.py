"""`fedserver run history`: what is printed, and tables that other programs read."""

import asyncio
import csv
import json
from pathlib import Path

import pytest

from fedserver.__main__ import main
from fedserver.cli.runs.tables import COLUMNS, write_tables
from fedserver.rpc.client import OperatorClient
from shoal.core.server_kit.history.records import DeviceRound, RoundHistory
from tests.core.server_kit.history.test_packed import ROUND
from tests.server.processes import daemon
from tests.server.servers import DEVICES, ROUNDS, spec
from tests.server.test_daemon import all_devices
from tests.server.toys import MODEL


def test_the_rounds_of_a_run_are_printed_and_written(
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
        assert str(out / "rounds.csv") in verb("history", "toy", "--out", str(out))
        verb("history", "toy", "--out", str(tmp_path / "latest"), "--rounds", "2")
    latest = list(csv.DictReader((tmp_path / "latest" / "rounds.csv").open()))
    assert [row["round"] for row in latest] == [str(ROUNDS), str(ROUNDS + 1)]
    rows = list(csv.DictReader((out / "devices.csv").open()))
    assert [(row["round"], row["device"]) for row in rows] == [
        (str(number), f"d{device}") for number in range(1, ROUNDS + 2) for device in range(DEVICES)
    ]
    assert float(rows[0]["loss"]) == found[0]["devices"][0]["loss"]
    assert json.loads((out / "run.json").read_text())["seed"] == spec().seed


def test_tables_have_all_columns(tmp_path: Path) -> None:
    files = write_tables(tmp_path, {"run": "toy"}, [ROUND, RoundHistory(8)])
    assert [path.name for path in files] == [*(f"{name}.csv" for name in COLUMNS), "run.json"]
    for name, columns in COLUMNS.items():
        assert next(csv.reader((tmp_path / f"{name}.csv").open())) == columns
    first, second = csv.DictReader((tmp_path / "clusters.csv").open())
    assert (first["parents"], first["loss"], second["loss"]) == ("c0 c2", "0.25", "")


def test_a_spreadsheet_computes_no_text_of_a_device(tmp_path: Path) -> None:
    hostile = RoundHistory(1, devices=(DeviceRound("d0", missing='=HYPERLINK("http://x")'),))
    write_tables(tmp_path, {}, [hostile])
    (row,) = csv.DictReader((tmp_path / "devices.csv").open())
    assert row["missing"].startswith("'=")
