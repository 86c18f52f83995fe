"""A real server, real devices and the page beside them, each in a process of its own."""

import asyncio
import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedserver.rpc.client import OperatorClient
from tests.server.page.pages import Page, page
from tests.server.processes import daemon, restored
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
            while not rows or rows[-1]["progress"] < ROUNDS:
                rows += until(found, "rounds", lambda _: True)["rows"]
            measured = {row["round"]: row["accuracy"] for row in rows if row["accuracy"] is not None}
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
