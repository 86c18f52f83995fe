"""`fedserver model export --folder`: all models of a run, with what a stranger needs to use them."""

import asyncio
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedserver.__main__ import main
from fedserver.cli import text
from fedserver.cli.models.folder import _lineage, write_folder
from fedserver.coordinator.status_types import DeviceFigures
from fedserver.rpc.client import OperatorClient
from shoal.core.data.scale import TARGET
from shoal.core.errors import BadPayload
from shoal.core.server_kit.history.records import ClusterRound, RoundHistory
from shoal.shell.weights import load
from tests.server.processes import daemon
from tests.server.servers import DEVICES, ROUNDS, spec
from tests.server.test_daemon import all_devices
from tests.server.toys import MODEL, same_models


def test_a_folder_has_models_settings_a_card_and_checksums(tmp_path: Path) -> None:
    state, folder = tmp_path / "s", tmp_path / "models"

    def export(*more: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main(["model", "export", "toy", *more, "--state", str(state)])
        return int(str(ended.value.code))

    with daemon(state) as server, OperatorClient(state) as client:
        client.start_run(spec(), MODEL)
        assert export("--folder", str(folder)) == 0
        assert "the run goes on" in (folder / "README.md").read_text()
        assert same_models({"": load(folder / "global" / "model.safetensors")}, {"": MODEL})
        asyncio.run(all_devices(server.address))
        assert export("--folder", str(folder)) == 0
        assert export("--folder", str(folder), "--out", "x") == export() == 3
        status = client.show("toy")
        final = {key: client.fetch(weights) for key, weights in status.models.items()}
        for name in ("../elsewhere", "..", str(tmp_path / "elsewhere"), "a\nb"):
            hostile = replace(status, models={**status.models, name: status.models["global"]})
            with pytest.raises(BadPayload, match="cannot be the name of a file"):
                write_folder(client, hostile, tmp_path / "new" / "folder")
        assert not (tmp_path / "new").exists()
        assert not (tmp_path / "elsewhere").exists()
    assert same_models({"global": load(folder / "global" / "model.safetensors")}, final)
    sums = dict(reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines())
    assert sorted(sums) == ["README.md", "config.json", "global/config.json", "global/model.safetensors"]
    for name, expected in sums.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == expected
    config = json.loads((folder / "config.json").read_text())
    assert (config["rounds"], config["seed"], config["parameters"]["rounds"]) == (ROUNDS, 5, ROUNDS)
    assert config["clusters"]["global"]["devices"] == DEVICES
    card = (folder / "README.md").read_text()
    assert "| global | global/model.safetensors | 3 | 15 |" in card
    assert all(f"    {line}" in card for line in text.privacy_table(status.released).splitlines())
    assert "goes on" not in card


def test_a_run_that_predicts_numbers_says_so_from_its_first_model_on(tmp_path: Path) -> None:
    state, folder = tmp_path / "s", tmp_path / "models"
    with daemon(state), OperatorClient(state) as client:
        client.start_run(spec(), MODEL)
        client.start_run(spec(name="homes"), {**MODEL, TARGET: np.ones(2, np.float32)})
        assert {each.run: each.numbers for each in client.runs()} == {"toy": False, "homes": True}
        status = client.show("homes")
        found = replace(status, devices=(DeviceFigures("d0", "global", 0.5, examples=9),))
        write_folder(client, found, folder)
    card = (folder / "README.md").read_text()
    assert "accuracy" not in card.lower()
    assert "| global | global/model.safetensors | 0 | 9 | 50.0 % |" in card
    assert "type: r_squared" in card
    assert "Variance explained is what the devices" in card


def test_the_lineage_of_a_cluster_goes_back_to_the_first_model() -> None:
    rounds = [
        RoundHistory(1, progress=1, clusters=(ClusterRound("global", parents=("global",)),)),
        RoundHistory(
            3, progress=2, clusters=tuple(ClusterRound(key, parents=("global",)) for key in ("c0", "c1"))
        ),
        RoundHistory(4, progress=3, clusters=(ClusterRound("c0", parents=("c0", "c1")),)),
    ]
    assert _lineage("c0", rounds) == [
        "c0 came from c0, c1 in round 3",
        "c0 came from global in round 2",
        "c1 came from global in round 2",
    ]
