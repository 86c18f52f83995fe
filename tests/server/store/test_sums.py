"""Checksums of blocks: the same however the bytes come, and other ones after any flip of a bit."""

import hashlib
import random

import pytest

from fedserver.store.content.sums import BLOCK, Sums, are_sound, blocks_of

CHANCE = random.Random(43)
DATA = CHANCE.randbytes(3 * BLOCK + 1234)


@pytest.mark.parametrize("most", [1 << 10, BLOCK, 1 << 18])
def test_they_are_the_same_however_the_bytes_come(most: int) -> None:
    found, at = Sums(), 0
    while at < len(DATA):
        size = CHANCE.randint(0, most)
        found.add(memoryview(DATA)[at : at + size])
        at += size
    assert found.sha256 == hashlib.sha256(DATA).hexdigest()
    assert found.size == len(DATA)
    assert found.blocks() == blocks_of(DATA)
    for first, last in ((0, 1), (1, 3), (2, 4), (3, 4), (2, 2)):
        assert are_sound(DATA[first * BLOCK : last * BLOCK], found.blocks(), first)
    assert not are_sound(DATA[BLOCK : 2 * BLOCK], found.blocks(), 0)


def test_each_flip_of_one_bit_is_seen_and_so_is_what_changes_places() -> None:
    blocks, block = blocks_of(DATA), bytearray(DATA[:BLOCK])
    for bit in range(64):  # of a word
        for _ in range(20):
            at = CHANCE.randrange(BLOCK // 8) * 8 + bit // 8
            block[at] ^= 1 << bit % 8
            assert not are_sound(block, blocks, 0)
            block[at] ^= 1 << bit % 8
    assert are_sound(block, blocks, 0)
    block[:4096], block[4096:8192] = block[4096:8192], block[:4096]
    assert not are_sound(block, blocks, 0)
    assert not are_sound(bytes(BLOCK), blocks, 0)
