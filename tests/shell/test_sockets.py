"""What the kernel knows of this process's connections, and whether what was sent still moves."""

import asyncio
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

import pytest

from shoal.core.engine.timeouts import MIN_BYTES, STALL
from shoal.shell import sockets
from shoal.shell.sockets import acknowledged, connections, end_of, while_moving
from tests.histories.loop import SimLoop
from tests.waiting import HANG


@contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of one TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    with near, far:
        yield near, far


def test_connections_are_found_by_both_ends() -> None:
    with connected() as (near, far):
        found = {(own, other) for _, own, other in connections()}
        assert (near.getsockname(), far.getsockname()) in found
        assert (far.getsockname(), near.getsockname()) in found
        near.send(b"still open")
        assert far.recv(100) == b"still open"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux says it")
def test_the_kernel_says_what_the_other_end_has_confirmed() -> None:
    with connected() as (near, far):
        end = far.getsockname()
        before = acknowledged(lambda other: other == end)
        assert before is not None
        near.sendall(bytes(10_000))
        received = 0
        while received < 10_000:
            received += len(far.recv(10_000))
        while acknowledged(lambda other: other == end) != before + 10_000:
            pass  # the confirmation is on its way
        assert acknowledged(lambda other: other == ("192.0.2.1", 1)) is None


@pytest.mark.parametrize(
    ("peer", "end"),
    [
        ("ipv4:10.0.0.7:50051", ("10.0.0.7", 50051)),
        ("ipv6:%5B::1%5D:50051", ("::1", 50051)),
        ("ipv6:%5B::ffff:10.0.0.7%5D:5", ("10.0.0.7", 5)),
        ("unix:", ("", 0)),
    ],
)
def test_the_names_that_grpc_gives_to_peers(peer: str, end: tuple[str, int]) -> None:
    assert end_of(peer) == end


def given_up(
    said: Callable[[float], int | None], monkeypatch: pytest.MonkeyPatch, every: float = 0.0
) -> float:
    """After how many seconds a step that never ends is given up. said: what the kernel says by the time.
    every: gRPC accepts MIN_BYTES bytes this often, for 1,000 seconds."""
    loop = SimLoop(Random(1), 0.0)
    monkeypatch.setattr(sockets, "acknowledged", lambda wanted: said(loop.now))

    async def sending() -> None:
        async with while_moving(lambda end: True) as moved:
            while every and loop.now < 1000.0:
                await asyncio.sleep(every)
                moved(MIN_BYTES)
            await loop.create_future()

    async def story() -> None:
        with pytest.raises(TimeoutError):
            await sending()

    loop.run_until_complete(story())
    loop.close()
    return loop.now


def test_a_sender_is_waited_for_as_long_as_its_bytes_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """In simulated time."""
    for said in (lambda now: 7, lambda now: None, lambda now: int(MIN_BYTES * now / STALL * 0.9)):
        assert STALL <= given_up(said, monkeypatch) < STALL * 1.4
    until = given_up(lambda now: int(MIN_BYTES * min(now, 1000.0) / STALL * 2.0), monkeypatch)
    assert 1000.0 < until < 1000.0 + 2.0 * STALL
    assert given_up(lambda now: None, monkeypatch, every=STALL * 0.9) == pytest.approx(
        1000.0 + STALL, rel=0.1
    )
    assert given_up(lambda now: None, monkeypatch, every=STALL * 1.1) == pytest.approx(STALL, rel=0.1)


def test_what_is_sent_in_time_ends_as_it_would() -> None:
    async def story() -> None:
        async with while_moving(lambda end: True) as moved:
            moved(7)

        async def failing() -> None:
            async with while_moving(lambda end: True):
                raise ValueError("bad")

        with pytest.raises(ValueError, match="bad"):
            await failing()

    asyncio.run(asyncio.wait_for(story(), HANG))
