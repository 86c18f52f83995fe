"""Exact decisions: word by word against rational numbers, and by going through every outcome there is."""

import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.privacy.noise.chance import BUFFER, Chance
from shoal.core.privacy.noise.discrete_gaussian import draw, laplace

words = st.integers(0, (1 << 64) - 1)


class Scripted(Chance):
    """Gives the words that it was given, then halves."""

    def __init__(self, script: list[int]) -> None:
        self.script = script

    def word(self) -> int:
        return self.script.pop(0) if self.script else 1 << 63


class Undecided(Exception):
    """The path so far leaves a decision open: its branches, each with its probability."""

    def __init__(self, branches: list[tuple[int, float]]) -> None:
        self.branches = branches


class Again(Exception):
    """Everything so far is thrown away, and the program starts from the beginning."""


class Path(Chance):
    """Takes the given decisions instead of drawing them, and stops at the first that is missing."""

    def __init__(self, decisions: tuple[int, ...]) -> None:
        self.decisions = iter(decisions)

    def happens(self, p: int, q: int) -> bool:
        return bool(self.decide([(1, p / q), (0, (q - p) / q)]))

    def decide(self, branches: list[tuple[int, float]]) -> int:
        for decision in self.decisions:
            return decision
        raise Undecided(branches)


class Round(Path):
    """A path through one round of a sampler that draws until it keeps something; rounds are all alike.

    An exponential chance, exact by a test of its own, is one decision.
    """

    begun = False

    def below(self, bound: int) -> int:
        if bound != 2:  # 2 is the sign's; another bound begins a round
            if self.begun:
                raise Again
            self.begun = True
        return self.decide([(value, 1 / bound) for value in range(bound)])

    def decays(self, p: int, q: int) -> bool:
        return bool(self.decide([(1, math.exp(-p / q)), (0, -math.expm1(-p / q))]))


def distribution(program: Callable[[Chance], int], steps: type[Path], least: float) -> dict[int, float]:
    """Probability of every outcome, along all paths more probable than `least`, of a round that keeps one."""
    found: dict[int, float] = {}
    open_paths: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    while open_paths:
        path, probability = open_paths.pop()
        try:
            outcome = program(steps(path))
        except Undecided as fork:
            open_paths += [
                ((*path, decision), probability * share)
                for decision, share in fork.branches
                if probability * share > least
            ]
        except Again:
            continue
        else:
            found[outcome] = found.get(outcome, 0.0) + probability
    total = sum(found.values())
    return {outcome: probability / total for outcome, probability in found.items()}


@given(st.lists(words, max_size=3), st.integers(0, 1 << 130), st.integers(1, 1 << 130))
def test_an_event_happens_where_the_random_number_lies_below_its_probability(
    script: list[int], p: int, q: int
) -> None:
    """The words are the digits of a number between 0 and 1, and no such p / q goes on like the halves."""
    p %= q + 1
    digits = [*script, *[1 << 63] * 6]
    number = sum(Fraction(word, 1 << 64 * place) for place, word in enumerate(digits, 1))
    assert Scripted(list(script)).happens(p, q) == (number < Fraction(p, q))


def test_certain_and_impossible_events() -> None:
    assert not any(Scripted([word]).happens(0, 3) for word in (0, 1, (1 << 64) - 1))
    assert all(Scripted([word]).happens(3, 3) for word in (0, 1, (1 << 64) - 1))


@pytest.mark.parametrize("bound", [1, 2, 3, 5, 1 << 64, (1 << 64) + 1, 3 << 100])
def test_below_keeps_the_leading_bits_and_draws_anew_what_is_too_large(bound: int) -> None:
    bits = (bound - 1).bit_length()
    size = -(-bits // 64)
    largest = (bound - 1) << (size * 64 - bits)
    digits = [largest >> 64 * place & (1 << 64) - 1 for place in reversed(range(size))]
    assert Scripted(list(digits)).below(bound) == bound - 1
    if bound & (bound - 1):
        assert Scripted([(1 << 64) - 1] * size + [0] * size).below(bound) == 0


@pytest.mark.parametrize("exponent", [Fraction(0), Fraction(1, 3), Fraction(1), Fraction(7, 4), Fraction(5)])
def test_an_exponential_chance_is_exact(exponent: Fraction) -> None:
    found = distribution(lambda chance: chance.decays(exponent.numerator, exponent.denominator), Path, 1e-17)
    assert found[True] == pytest.approx(math.exp(-exponent), rel=1e-13)


@pytest.mark.parametrize("scale", [1, 3, 8])
def test_the_discrete_laplace_is_exact(scale: int) -> None:
    found = distribution(lambda chance: laplace(scale, chance), Round, 1e-15)
    total = sum(math.exp(-abs(y) / scale) for y in range(-999, 1000))
    for y in range(-20, 21):
        assert found[y] == pytest.approx(math.exp(-abs(y) / scale) / total, rel=1e-6)


@pytest.mark.parametrize("variance", [Fraction(1, 3), Fraction(7, 8), Fraction(5), Fraction(100, 9)])
def test_the_discrete_gaussian_is_exact(variance: Fraction) -> None:
    found = distribution(lambda chance: draw(variance, 1, chance)[0], Round, 1e-15)
    weight = {y: math.exp(-y * y / (2 * variance)) for y in range(-60, 61)}
    for y in range(-3, 4):
        assert found[y] == pytest.approx(weight[y] / sum(weight.values()), rel=1e-6)


def test_entropy_is_asked_for_in_bulk_and_every_word_of_it_is_used_once() -> None:
    asked: list[int] = []

    def entropy(size: int) -> bytes:
        asked.append(size)
        first = len(asked) * 1000
        return b"".join((first + place).to_bytes(8, "little") for place in range(size // 8))

    def words_of(count: int) -> Iterator[int]:
        chance = Chance(entropy)
        return (chance.word() for _ in range(count))

    drawn = list(words_of(2 * BUFFER // 8))
    assert asked == [BUFFER, BUFFER]
    assert len(set(drawn)) == len(drawn)


def test_two_chances_of_the_operating_system_differ() -> None:
    assert [Chance().word() for _ in range(4)] != [Chance().word() for _ in range(4)]
