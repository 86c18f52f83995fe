"""A real server, real devices and the page beside them, each in a process of its own."""

import asyncio
import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedserver.authority.setup import init
from fedserver.rpc.client import OperatorClient
from tests.server.page.pages import Page, page
from tests.server.processes import add_settings, daemon, restored
from tests.server.servers import DEVICES, ROUNDS, spec
from tests.server.test_daemon import all_devices
from tests.server.toys import MODEL
from tests.waiting import HANG

pytest.importorskip("uvicorn", reason="the page needs starlette and uvicorn")


@contextmanager
def events(at: Page, cookie: str, query: str = "") -> Iterator[Iterator[tuple[str, Any]]]:
    """The events of a view, as they come."""
    host, port = at.address.rsplit(":", 1)
    line = http.client.HTTPConnection(host, int(port), timeout=HANG)
    line.request("GET", f"/events{query}", headers={"cookie": cookie})
    answer = line.getresponse()
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")

    def each() -> Iterator[tuple[str, Any]]:
        name = ""
        while text := answer.readline().decode():
            if text.startswith("event: "):
                name = text[7:].strip()
            elif text.startswith("data: "):
                yield name, json.loads(text[6:])

    try:
        yield each()
    finally:
        line.close()


def until(found: Iterator[tuple[str, Any]], name: str, holds: Any) -> Any:
    """The first document of this name for which it holds."""
    end = time.monotonic() + HANG
    for each, data in found:
        assert time.monotonic() < end, f"no such {name}, but {data}"
        if each == name and holds(data):
            return data
    raise AssertionError("the stream has ended")


def test_the_page_follows_a_run_and_outlives_the_server_and_not_the_other_way_round(tmp_path: Path) -> None:
    state = tmp_path / "s"
    with daemon(state) as server, page(state) as at, OperatorClient(state) as operator:
        cookie = at.cookie()
        operator.start_run(spec(), MODEL)
        with events(at, cookie, "?run=toy") as found:
            assert until(found, "run", lambda run: run["algorithm"] == "fedavg")["seed"] == 5
            asyncio.run(all_devices(server.address))
            rows: list[Any] = []
            while not rows or rows[-1]["progress"] < ROUNDS or rows[-1]["accuracy"] is None:
                rows += until(found, "rounds", lambda _: True)["rows"]
            measured = {
                row["progress"] - (row["on"] == "train"): row["accuracy"]
                for row in rows
                if row["accuracy"] is not None
            }
            assert measured == pytest.approx(dict(operator.show("toy").accuracies), rel=1e-5)
        with events(at, cookie) as found:
            fleet = until(found, "fleet", lambda each: len(each["devices"]) == DEVICES)
            assert [device["device"] for device in fleet["devices"]] == ["d0", "d1", "d2"]
            server.process.kill()
            server.process.wait()
            until(found, "server", lambda each: not each["reachable"])
            with daemon(state):
                until(found, "server", lambda each: each["reachable"])
                at.process.kill()
                at.process.wait()
                assert restored(operator, "toy").summary.stage == "finished"


def test_the_page_is_served_elsewhere_with_a_viewers_certificate(tmp_path: Path) -> None:
    state, anna = tmp_path / "s", tmp_path / "anna"
    init(state, ("127.0.0.1",), "127.0.0.1:0", "127.0.0.1:0", "shoal")
    add_settings(state, "operator_listen: 127.0.0.1:0\n")
    with (
        daemon(state, options=()) as server,
        OperatorClient(state) as operator,
    ):
        add = [sys.executable, "-m", "fedserver", "operator", "add", "anna", "--state", str(state)]
        subprocess.run([*add, "--out", str(anna)], check=True, timeout=HANG, capture_output=True)
        operator.start_run(spec(), MODEL)
        with page(anna, by="--connect") as at:
            with events(at, at.cookie(), "?run=toy") as found:
                until(found, "server", lambda each: [run["run"] for run in each["runs"]] == ["toy"])
                assert until(found, "run", lambda run: run["algorithm"] == "fedavg")["seed"] == 5
                operator.revoke_operator("anna")
                lost = until(found, "server", lambda each: not each["reachable"])
                assert "operator anna was revoked" in str(lost)
            assert server.process.poll() is None
