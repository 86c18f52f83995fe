"""A server's texts, which a hostile server may write, look like nothing else on the owner's screen."""

import asyncio
from typing import Any

import pytest

from fedclient.agent.reporter import Reporter
from fedclient.cli import status, watch
from fedclient.store.state import Status
from shoal.core.errors import Refused
from shoal.core.exchange.link import ObservedRun

FORGED = "refused\nerror[revoked]: forged line\nidentity:    none"


def test_the_status_of_a_device_has_no_line_of_the_servers(tmp_path: Any) -> None:
    facts = {
        "device": "d0", "identity": None, "trouble": None, "server": FORGED, "answers": True,
        "running": True, "doing": FORGED, "at": 0.0, "tasks": 1, "cluster": FORGED, "outbox": False,
        "last_task": {"run": FORGED, "round": 1, "title": FORGED, "outcome": FORGED},
        "watch": None, "software": {"version": "0.2.0", "updates": True, "trial": None, "failed": {}},
        "privacy": {"budget": None, "spent": 0.0},
        "last_error": {"code": "refused", "message": FORGED, "details": FORGED},
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(status.privacy_report, "line", lambda found: "nothing has left")
        lines = status.text(facts).splitlines()
    assert [line for line in lines if line.startswith("error[")] == []
    assert len([line for line in lines if line.startswith("identity:")]) == 1


def test_an_error_of_the_server_is_one_error(tmp_path: Any) -> None:
    said: list[str] = []

    async def fail() -> None:
        Reporter(Status("d0", "server"), tmp_path, said.append, said.append).failed(Refused(FORGED, FORGED))

    asyncio.run(fail())
    lines = "\n".join(said).splitlines()
    assert [line for line in lines if line.startswith("error[")] == ["error[refused]: refused"]


def test_a_run_that_is_watched_is_one_line() -> None:
    assert "\n" not in watch._line(ObservedRun(FORGED, "flux", "open", 1, FORGED))
