"""Every lie of `hostile` sent to a real server process: refused before it counts, in a round that goes on.

An honest device takes part in every round, and only its model is what each round ends with. What the server
answered, and by how much its memory grew at most meanwhile, is printed as a table (pytest -s).
"""

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import grpc
import pytest
from grpc import aio

from fedserver.rpc.client import OperatorClient
from fedserver.store.records import RunSpec
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.exchange.link import Failure, Outcome, Receipt, Report, Task
from shoal.core.exchange.messages import Train, Trained
from tests.server.hostile import ATTACKS, Attack, another_blob
from tests.server.processes import Daemon, daemon
from tests.server.toys import MODEL, Hands, honest, same_models
from tests.server.wire_link import WireLink
from tests.waiting import HANG

GROWTH = 64
"""MiB by which the server may grow during one attack."""
REFUSALS = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNIMPLEMENTED,
)
"""Neither INTERNAL nor UNKNOWN, which would be bugs of ours, nor NOT_FOUND, which says that a report may
count as soon as its blobs are here."""


def test_every_lie_is_refused_and_the_round_goes_on(tmp_path: Path) -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the memory of a process cannot be seen here: there is no /proc")
    assert len(ATTACKS) >= 30
    with daemon(tmp_path / "s") as server:
        with OperatorClient(tmp_path / "s") as operator:
            # By the default rule, the losses that the scripted device reports would count as a fall.
            rounds = {"rounds": len(ATTACKS), "evaluate": False, "aggregation": "mean", "inputs": "raw"}
            policy = RoundPolicy(devices=2, minimum=1)
            operator.start_run(RunSpec("toy", "fedavg", parameters=rounds, policy=policy), MODEL)
        asyncio.run(asyncio.wait_for(_attacked(server), HANG))
        with OperatorClient(tmp_path / "s") as operator:
            *_, run = operator.watch("toy")
            assert run.summary.stage == "finished"
            assert not run.abandoned


async def _attacked(server: Daemon) -> None:
    # what the attacks of hundreds of megabytes need on this side is not held against the server
    options = (("grpc.max_send_message_length", -1),)
    async with (
        aio.insecure_channel(server.address) as ours,
        aio.insecure_channel(server.address, options=options) as theirs,
    ):
        good = await Hands(WireLink(ours, "good")).hello()
        evil = await Hands(WireLink(theirs, "evil")).hello()
        expected = MODEL
        for name, attack in ATTACKS.items():
            task, bait = await asyncio.gather(_task(good), _task(evil))
            message, taken = await good.open(task), await evil.open(bait)
            assert isinstance(message, Train)
            assert isinstance(taken, Train)
            assert same_models({"global": message.model}, {"global": expected}), f"before {name}"
            before = _memory(server, "VmRSS")
            _forget_the_peak(server)
            lie = honest(1)(taken, bait.seed)
            assert isinstance(lie, Trained)
            report = attack(Attack(theirs, evil, bait, lie.model))
            said = await _refusal(report, *([grpc.StatusCode.NOT_FOUND] if attack is another_blob else []))
            growth = _memory(server, "VmHWM") - before
            print(f"{name:<36} {growth:6.1f} MiB  {said}")
            assert growth <= GROWTH, name
            given_up = Report(bait.run, bait.round, bait.attempt, Failure("evil", name))
            assert (await evil.link.report(given_up)).outcome in (Outcome.ACCEPTED, Outcome.LATE)
            answer = honest(0)(message, task.seed)
            assert isinstance(answer, Trained)
            assert (await good.send(task, good.payload(answer))).outcome is Outcome.ACCEPTED, name
            expected = answer.model


async def _task(hands: Hands) -> Task:
    """The device's next task; before the first one both are still arriving."""
    while not isinstance(found := await hands.link.next_task(5.0), Task):
        pass
    return found


async def _refusal(attack: Awaitable[object], *also: grpc.StatusCode) -> str:
    """What became of an attack, in one line. Fails if it was not refused. also: statuses that it may have."""
    try:
        answer = await attack
    except aio.AioRpcError as error:
        if error.code() not in (*REFUSALS, *also):
            raise
        return f"{error.code().name.lower()}: {(error.details() or '')[:90]}"
    assert isinstance(answer, Receipt), answer
    assert answer.outcome in (Outcome.REFUSED, Outcome.LATE), answer
    return f"{answer.outcome.value}: {answer.reason[:90]}"


def _forget_the_peak(server: Daemon) -> None:
    """VmHWM starts from the present size."""
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")


def _memory(server: Daemon, what: str) -> float:
    """MiB: VmRSS is what the server has now, VmHWM the most that it had."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition(f"{what}:")[2].split()[0]) / 1024
