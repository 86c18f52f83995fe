"""Seeded random histories of cuts, lost sessions and crashes: every round gets its result once."""

import asyncio
import contextlib
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fedclient.agent.agent import Until
from shoal.core.errors import Unavailable
from shoal.core.exchange.link import Receipt
from tests.client.memory_server import MemoryLink, MemoryServer
from tests.client.visits import Device, train, trained


class Crash(Exception):
    """The end of the process."""


class ChaoticLink(MemoryLink):
    """Any call or answer may be lost, sessions go, transfers are cut, the process dies."""

    def __init__(self, server: MemoryServer, chance: Random) -> None:
        super().__init__(server)
        self._chance = chance

    def _call(self, kind: str, detail: object = "", session: bool = True) -> None:
        roll = self._chance.random()
        if roll < 0.03:
            raise Crash
        if roll < 0.13:
            raise Unavailable("the request was lost")
        if roll < 0.18:
            self._server.forget = True
        if roll > 0.9 and kind in ("fetch", "upload"):
            self._server.cut = [self._chance.randrange(0, 4500)]
        super()._call(kind, detail, session)

    def _maybe_lost(self) -> None:
        roll = self._chance.random()
        if roll < 0.03:
            raise Crash
        if roll < 0.13:
            raise Unavailable("the answer was lost")

    async def next_task(self, wait: float) -> Any:
        found = await super().next_task(wait)
        self._maybe_lost()
        return found

    async def upload(self, blob: Any, start: int, chunks: Any) -> int:
        held = await super().upload(blob, start, chunks)
        self._maybe_lost()
        return held

    async def report(self, report: Any) -> Receipt:
        receipt = await super().report(report)
        self._maybe_lost()
        return receipt


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_every_round_gets_its_result_once(tmp_path: Path, seed: int) -> None:
    chance, server = Random(seed), MemoryServer([])
    server.tasks = [train(server, number, float(number)) for number in range(1, 7)]
    performed: list[int] = []
    for _ in range(200):  # lives of the device's process
        device = Device(tmp_path, server)
        agent = device.agent(ChaoticLink(server, chance))
        with contextlib.suppress(Crash):
            asyncio.run(agent.run(Until.FINISHED))
            break
        performed += device.executor.performed
    else:
        pytest.fail("it never came to an end")
    performed += device.executor.performed
    assert [report.round for report in server.reports] == [1, 2, 3, 4, 5, 6]
    for index in range(6):
        assert trained(server, index) == [0.0, 2.0 * (index + 1), 4.0 * (index + 1)]
    assert sorted(set(performed)) == [1, 2, 3, 4, 5, 6]
