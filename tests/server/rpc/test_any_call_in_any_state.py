"""Every call of a device, in every state that a device can be in, with what a hostile one would say.

Whatever comes of it, each answer that an operator can ask for is given, by command, on the page, as metrics.
"""

import asyncio
import itertools
import json
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from google.protobuf.message import Message
from grpc import aio

from fedserver.page.asking import Server
from fedserver.page.feed import FLEET, _encoded
from fedserver.rpc.client import OperatorClient
from fedserver.telemetry.metrics import metrics
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.exchange import messages, wire
from shoal.core.exchange._pb.fed.v1 import device_service_pb2 as device_pb
from shoal.core.exchange._pb.fed.v1 import messages_pb2, payload_pb2, task_pb2
from shoal.core.exchange._pb.fed.v1.blob_service_pb2 import FetchRequest, UploadedRequest
from shoal.core.exchange._pb.fed.v1.placement_service_pb2 import GetSealRequest, PlaceRequest, Wish
from shoal.core.exchange.admit import MAX_VALUE
from shoal.core.exchange.link import Hello, Outcome
from shoal.core.exchange.messages import Evaluate, Evaluated, Train, Trained
from shoal.core.exchange.payload import BlobRef
from shoal.core.identity.joining import Pending, Role
from tests.server.authority.peers import Peer, World, world
from tests.server.commands import Command, commands
from tests.server.servers import start
from tests.server.toys import Hands
from tests.waiting import HANG

pytest.importorskip("uvicorn", reason="the page needs starlette and uvicorn")

SEEDS = range(2)
TEXTS = ("", "toy", "a\x1b[31mb", "\u202e\u0000\ufffe", "x" * 65536, "\U0001f40b" * 256, "{}", "../..")
WHOLE = (0, 1, 2, (1 << 31) - 1, (1 << 32) - 1)
REAL = (0.0, -1.0, 5e-324, 1.7e308, -1.7e308, float("inf"), float("nan"))


class Chance(Random):
    """What a call says where it may say anything."""

    def text(self) -> str:
        return self.choice(TEXTS)

    def whole(self) -> int:
        return self.choice(WHOLE)

    def real(self) -> float:
        return self.choice(REAL)

    def lease(self) -> task_pb2.Lease:
        run = self.choice(("toy", "toy", self.text()))
        return task_pb2.Lease(
            run=run, round=self.choice((1, self.whole())), attempt=self.choice((1, self.whole()))
        )

    def report(self, lease: task_pb2.Lease | None = None) -> task_pb2.Report:
        """A failure, or an answer with odd figures."""
        report = task_pb2.Report(lease=lease or self.lease())
        if self.random() < 0.5:
            texts = {name: self.text() for name in ("code", "message", "details")}
            report.failure.CopyFrom(task_pb2.Failure(**texts))
            return report
        odd: Any = {"loss": self.real(), "examples": self.whole()}
        trained = messages_pb2.Trained(**odd)
        evaluated = messages_pb2.Evaluated(**odd, accuracy=self.real())
        answers = (
            payload_pb2.Payload(trained=trained),
            payload_pb2.Payload(trained_encoded=trained),
            payload_pb2.Payload(evaluated=evaluated),
            payload_pb2.Payload(custom=payload_pb2.Custom(kind=self.text())),
        )
        report.payload.CopyFrom(self.choice(answers))
        return report


Body = Callable[[Chance, str], Message]
BLOB = wire.blob_to_pb(BlobRef("ab" * 32, 8))
BODIES: Mapping[str, Body] = {
    "DeviceService/Hello": lambda chance, session: device_pb.HelloRequest(
        software=chance.text()[:512], oldest_protocol=1, newest_protocol=max(1, chance.whole())
    ),
    "DeviceService/NextTask": lambda chance, session: device_pb.NextTaskRequest(
        session=session, wait=wire.seconds_to_pb(0.0)
    ),
    "DeviceService/Alive": lambda chance, session: device_pb.AliveRequest(
        session=session, lease=chance.lease()
    ),
    "DeviceService/Report": lambda chance, session: device_pb.ReportRequest(
        session=session, report=chance.report()
    ),
    "DeviceService/Leave": lambda chance, session: device_pb.LeaveRequest(session=session),
    "BlobService/Fetch": lambda chance, session: FetchRequest(blob=BLOB, start=chance.whole()),
    "BlobService/Uploaded": lambda chance, session: UploadedRequest(blob=BLOB),
    "PlacementService/Place": lambda chance, session: PlaceRequest(
        run=chance.choice(("toy", chance.text()[:256])), wish=Wish(models=max(1, chance.whole()), own=True)
    ),
    "PlacementService/GetSeal": lambda chance, session: GetSealRequest(
        release=chance.choice(("toy@1", chance.text()[:256]))
    ),
}
"""Each call of one message, but uploads: those are streams, and `tests/fuzz` plays them."""


def test_every_call_is_played() -> None:
    from fedserver.authority.permissions import ALLOWED

    served = {
        call.removeprefix("/fed.v1.")
        for call, roles in ALLOWED.items()
        if roles & {Role.TRAIN, Role.INFER_ONLY}
    }
    assert served == {*BODIES, "BlobService/Upload", "/grpc.health.v1.Health/Check"}


# -- states -------------------------------------------------------------------------------------------------

State = Callable[[World, Peer], Awaitable[str]]
"""Brings a device that has joined into a state, and returns the session that its calls name."""


async def stranger(found: World, peer: Peer) -> str:
    return ""


async def made_up(found: World, peer: Peer) -> str:
    return "a session of no one"


async def said_hello(found: World, peer: Peer) -> str:
    async with peer.channel() as channel:
        return (await peer.link(channel).hello(Hello("toy"))).session


async def replaced(found: World, peer: Peer) -> str:
    first = await said_hello(found, peer)
    await said_hello(found, peer)
    return first


async def left(found: World, peer: Peer) -> str:
    async with peer.channel() as channel:
        link = peer.link(channel)
        session = (await link.hello(Hello("toy"))).session
        await link.leave()
        return session


async def working(found: World, peer: Peer) -> str:
    """It answers a task with the largest figure that is taken, and has the next one."""
    async with peer.channel() as channel:
        hands = await Hands(peer.link(channel)).hello()
        receipt = await hands.do(await hands.task(), lambda message, seed: odd(message))
        assert receipt.outcome is Outcome.ACCEPTED
        await hands.task()
        return str(hands.link._session)  # type: ignore[attr-defined]


def odd(message: messages.Message) -> messages.Message:
    if isinstance(message, Evaluate):
        return Evaluated(accuracy=1.0, loss=MAX_VALUE, examples=1 << 40)
    assert isinstance(message, Train)
    return Trained(message.model, 1 << 40, MAX_VALUE)


async def revoked(found: World, peer: Peer) -> str:
    session = await said_hello(found, peer)
    await found.api.revoke(peer.name, "\u202e" * 600)
    return session


STATES: Mapping[str, State] = {
    each.__name__.replace("_", "-"): each
    for each in (stranger, made_up, said_hello, replaced, left, working, revoked)
}


async def called(peer: Peer, call: str, body: Message, session: str) -> None:
    async with peer.channel() as channel:
        stub = channel.unary_unary if call != "BlobService/Fetch" else channel.unary_stream
        metadata = (("shoal-session", session), ("shoal-device", "someone-else"))
        answer: Any = stub(f"/fed.v1.{call}")(body.SerializeToString(), metadata=metadata, timeout=HANG)
        with suppress(aio.AioRpcError):
            if call == "BlobService/Fetch":
                [each async for each in answer]
            else:
                await answer


# -- all that can be asked ----------------------------------------------------------------------------------


def asked(state: Path, names: list[str], address: str, run: Command) -> None:
    """Everything, by command, page and metrics."""
    for line in (
        ("status",),
        ("run", "ls"),
        ("run", "show", "toy"),
        ("run", "show", "toy", "--newcomers"),
        ("run", "logs", "toy"),
        ("run", "history", "toy"),
        ("model", "ls", "toy"),
        ("device", "ls"),
        *(("device", "show", name) for name in names),
        ("token", "ls"),
        ("operator", "ls"),
        ("audit", "verify"),
        ("audit", "show"),
    ):
        for form in ((), ("--json",)):
            code, out, err = run(*line, "--state", state, *form)
            assert code == 0, (line, out, err)
            assert "it cannot be shown" not in out, (line, out)
            if form and line[:2] != ("run", "logs"):
                json.loads(out, parse_constant=_no_number)
    with OperatorClient(state) as operator:
        page = Server(cast(Any, operator))
        fleet = page.look(FLEET, 0)
        shown = [each["device"] for each in fleet.documents["fleet"]["devices"]]
        assert set(shown) <= set(names)
        for answer in (fleet, page.look("toy", 0)):
            for document in (answer.server, answer.documents, answer.rows):
                _encoded(document)
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=HANG) as answer:
        assert b"shoal_devices" in answer.read()


def _no_number(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def test_no_call_in_any_state_hides_anything(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run, numbers = commands(capfd), itertools.count()

    async def play() -> None:
        async with world(tmp_path / "s") as found:
            await start(found.coordinator, policy=RoundPolicy(), parameters={"rounds": 50, "inputs": "raw"})
            waiting = Peer(await found.token(hold=True), "waits", found.listeners.address)
            assert isinstance(await waiting.join(), Pending)
            names = ["waits"]
            with metrics(found.coordinator, "127.0.0.1:0", dict) as address:
                for (name, state), role in itertools.product(STATES.items(), (Role.TRAIN, Role.INFER_ONLY)):
                    if role is Role.INFER_ONLY and state is working:
                        continue
                    for seed in SEEDS:
                        peer = await found.device(f"d{next(numbers)}", role=role)
                        names.append(peer.name)
                        session = await state(found, peer)
                        for call, body in BODIES.items():
                            await called(peer, call, body(Chance(f"{name} {seed} {call}"), session), session)
                    await asyncio.to_thread(asked, tmp_path / "s", names, address, run)

    asyncio.run(play())
