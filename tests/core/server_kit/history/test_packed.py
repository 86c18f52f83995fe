"""A round's history in storage: the same value comes back, in a bounded size."""

import zlib

import pytest

from shoal.core.errors import DataFault
from shoal.core.server_kit.history.packed import DEVICES, EVENTS, bounded, pack, unpack
from shoal.core.server_kit.history.records import (
    ClusterRound,
    DeviceRound,
    Digest,
    Position,
    RoundHistory,
    RunEvent,
    digest_of,
)

ROUND = RoundHistory(
    7,
    "training round 5 of 20: one model for each cluster",
    1_700_000_000.125,
    12.5,
    3,
    2,
    "",
    5,
    "train",
    0.25,
    None,
    1 << 40,
    300,
    (ClusterRound("c0", "ab" * 32, 2, 0.25, None, ("c0", "c2"), ("clipped",)), ClusterRound("c1")),
    (RunEvent("merged", "c0, c2 were merged into c0", ("c0", "c2", "c0")),),
    (
        DeviceRound("a", "c0", 40, 0.125, 0.5, 100, 200, 3.5, 1.25),
        DeviceRound("b", missing="it did not report before the deadline"),
    ),
    4,
    {"a": Position(1.5, -2.0, 1.0, 0.25, 0.5), "b": Position(0.0, 1.0)},
    Digest({"a": "c0"}, "a", 3.5, mapped=True),
)


def test_a_round_comes_back_as_it_was_with_or_without_its_devices() -> None:
    summary, devices = pack(ROUND)
    assert unpack(summary, devices) == ROUND
    without = unpack(summary)
    assert (without.devices, without.positions) == ((), {})
    assert (without.clusters, without.digest) == (ROUND.clusters, ROUND.digest)
    assert digest_of(ROUND, {"b": ""}) == ROUND.digest
    assert digest_of(ROUND, {"a": "c0"}).assigned == {}
    assert unpack(*pack(RoundHistory(1))) == RoundHistory(1)


def test_numbers_are_rounded_to_six_digits() -> None:
    found = unpack(*pack(RoundHistory(1, ended=1_700_000_000.123456, loss=0.123456789)))
    assert (found.loss, found.ended) == (0.123457, 1_700_000_000.123)


def test_the_size_of_a_round_is_bounded() -> None:
    found = bounded(
        RoundHistory(
            1,
            devices=tuple(DeviceRound(f"d{n}", missing="x" * 5000) for n in range(DEVICES + 5)),
            events=tuple(RunEvent("remark", "x" * 5000) for _ in range(EVENTS + 5)),
            digest=Digest({f"d{n}": "c0" for n in range(DEVICES + 5)}),
        )
    )
    assert found.digest is not None
    assert len(found.digest.assigned) == DEVICES
    assert (len(found.devices), found.left_out, len(found.events)) == (DEVICES, 5, EVENTS)
    assert len(found.devices[0].missing) < 200
    assert len(found.events[0].text) < 500


@pytest.mark.parametrize("damaged", [b"", b"x", zlib.compress(b"[]"), zlib.compress(b'{"clusters": 3}')])
def test_bytes_of_something_else_are_an_error(damaged: bytes) -> None:
    with pytest.raises(DataFault, match="the history of a round cannot be read"):
        unpack(damaged)
