"""`fedserver run history`: what is printed, and what other programs read."""

import asyncio
import json
from pathlib import Path

import pytest

from fedserver.__main__ import main
from fedserver.rpc.client import OperatorClient
from tests.server.processes import daemon
from tests.server.servers import DEVICES, ROUNDS, spec
from tests.server.test_daemon import all_devices
from tests.server.toys import MODEL


def test_the_rounds_of_a_run_are_printed_as_text_and_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "s"

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
