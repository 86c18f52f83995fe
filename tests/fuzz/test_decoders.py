"""Random and damaged bytes to every decoder that a peer can reach; `make fuzz` does the same for longer."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.decoders import TARGETS, seeds, survive
from tests.fuzz.mutations import changed

SEEDS, NAMES = seeds(), sorted(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_what_was_recorded_and_what_once_broke_something(name: str) -> None:
    for data in SEEDS[name]:
        survive(name, data)


@pytest.mark.parametrize("name", TARGETS)
@given(data=st.binary(max_size=300))
@settings(max_examples=50)
def test_random_bytes(name: str, data: bytes) -> None:
    survive(name, data)


@given(st.integers(0, (1 << 64) - 1))
@settings(max_examples=200)
def test_damaged_messages(seed: int) -> None:
    chance, name = random.Random(seed), NAMES[seed % len(NAMES)]
    survive(name, changed(chance.choice(SEEDS[name]), chance.choice(SEEDS[name]), chance))


def test_the_recorded_messages_get_the_decoders_to_the_end() -> None:
    whole = set()
    for name, found in SEEDS.items():
        for data in found:
            try:
                TARGETS[name](data)
            except Exception:
                continue
            whole.add(name)
    assert whole >= {"hello", "report", "place", "welcome", "task", "receipt", "answer", "fault"}
