"""The server process loads neither PyTorch nor any data set, whatever it is asked to run."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from fedserver.rpc.client import OperatorClient
from tests.server.processes import daemon
from tests.server.servers import spec
from tests.server.test_daemon import all_devices
from tests.server.toys import MODEL

PROGRAM = """
import atexit, sys
from fedserver.__main__ import main
atexit.register(lambda: print(*sorted(sys.modules), file=sys.stderr))
main()
"""
FORBIDDEN = (
    "torch",
    "shoal.core.device_kit",
    "shoal.core.models",
    "shoal_lab.datasets",
    "shoal_lab.experiment",
    "shoal_lab.fleets",
    "shoal_lab.shifts",
    "shoal.simulation",
    "shoal.core.data",
)
SEEDS = (
    "shoal.core.data",
    *(f"shoal.core.data.{each}" for each in ("seeds", "scale", "trimmed", "histogram", "from_json")),
)
"""What the engine derives its seeds with, what is made of devices' figures, and what reads the terms of a
run; they load no data."""


def test_a_server_that_runs_flux_loads_no_torch_and_no_data(tmp_path: Path) -> None:
    with daemon(tmp_path / "s", ("-c", PROGRAM)) as server, OperatorClient(tmp_path / "s") as operator:
        operator.start_run(spec(name="flux", algorithm="flux"), None)
        operator.stop_run("flux")
        operator.start_run(spec(), MODEL)
        asyncio.run(all_devices(server.address))
        assert operator.show("toy").summary.stage == "finished"
        assert server.stop() == 0
    loaded = set(server.log.read_text().splitlines()[-1].split())
    assert {"shoal.core.algorithms.flux.server", "shoal.core.algorithms.fedavg.server", "numpy"} <= loaded
    others = loaded.difference(SEEDS)
    wrong = [name for name in others if any(f"{name}.".startswith(f"{each}.") for each in FORBIDDEN)]
    assert wrong == []


def test_what_only_asks_loads_neither_cryptography_nor_the_store() -> None:
    """Cryptography takes as much memory as gRPC, and links of the page are authenticated by `hmac`. A verb is
    to start quickly."""
    pytest.importorskip("uvicorn", reason="the page needs starlette and uvicorn")
    asking = "fedserver.page.app, fedserver.page.source, fedserver.rpc.client, fedserver.cli.runs.run"
    program = f"import sys, {asking}; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    unwanted = ("cryptography", "sklearn", "sqlite3", "fedserver.store.database", "fedserver.store.content")
    assert [name for name in found.stdout.split() if name.startswith(unwanted)] == []
