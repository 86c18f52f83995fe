"""A server that shows devices different lists, with and without devices that collude with it: of how many
honest ones is the smallest sum that it reads?"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import combinations, combinations_with_replacement
from math import sqrt
from random import Random

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant

from shoal.core.errors import BadPayload
from shoal.core.privacy.cost import rho_of
from shoal.core.privacy.report import CentralNoise
from shoal.core.privacy.secure import member as members
from shoal.core.privacy.secure.cohort import colluding, smallest, threshold
from shoal.core.privacy.secure.fixed_point import scale_of, variance_of
from shoal.core.privacy.secure.masks import Words, expanded, public_of
from shoal.core.privacy.secure.member import Member, commitment, pair_key, plus_mask
from shoal.core.privacy.secure.opening import Lists, read
from shoal.core.privacy.secure.shamir import SHARE, joined
from shoal.core.types import DeviceId

from .games import TASK, Cohort, Openings, opened_by_all

Names = frozenset[DeviceId]
NONE: Names = frozenset()


@lru_cache(8)
def shared(count: int) -> Cohort:
    """Up to the letters, honestly. Members are values, so all games of this size may begin here."""
    return Cohort(count, length=3).announce().share()


@lru_cache(4096)
def masked(count: int, device: DeviceId, senders: Names) -> tuple[Words, Member]:
    cohort = shared(count)
    letters = {each: data for each, data in cohort.letters_for(device).items() if each in senders}
    return members.masked(cohort.members[device], "sum", letters, cohort.values(device), TASK)


@lru_cache(4096)
def unmasked(count: int, device: DeviceId, senders: Names, survivors: Names) -> dict[DeviceId, bytes] | None:
    """None where the device refuses."""
    try:
        return members.unmasked(masked(count, device, senders)[1], "sum", survivors)
    except BadPayload:
        return None


@dataclass
class Game:
    """One sum, of which the server shows each device what it likes. colluders: tell it all that they know.

    shown: to each honest device, for which devices it masks. asked: for which it then opens. replayed: keys
    of devices that take no part; the server knows those of masks, from a sum that these dropped out of.
    """

    count: int
    shown: Mapping[DeviceId, Names]
    asked: Mapping[DeviceId, Names]
    colluders: Names = NONE
    replayed: Names = NONE
    openings: dict[DeviceId, tuple[Lists, dict[DeviceId, bytes]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cohort = shared(self.count)
        for device, survivors in self.asked.items():
            senders = self.shown[device]
            sent = unmasked(self.count, device, senders, survivors)
            if sent is not None:
                self.openings[device] = self._lists(senders, survivors), sent

    def _lists(self, senders: Names, survivors: Names) -> Lists:
        return Lists(self.cohort.manifest, tuple(sorted(senders)), tuple(sorted(survivors)))

    def learned(self) -> list[Names]:
        """The smallest sets of honest devices of which the server reads the sum, which is checked."""
        own, mask = self._secrets()
        left = {
            each: NONE if each in mask else senders - {*mask, each} for each, senders in self.shown.items()
        }
        found = set[Names]()
        for each in {*own} & {*self.shown}:
            group, waiting = set[DeviceId](), [each]
            while waiting:  # what is left on the numbers of one has to be on those of another one, too
                one = waiting.pop()
                if one not in group:
                    group.add(one)
                    waiting += left[one] & {*self.shown}
            cancels = all(other in group and one in left[other] for one in group for other in left[one])
            if cancels and group <= {*own} and frozenset(group) not in found:
                self._check(group, own, mask)
                found.add(frozenset(group))
        return [*found]

    def _check(
        self, group: set[DeviceId], own: Mapping[DeviceId, bytes], mask: Mapping[DeviceId, bytes]
    ) -> None:
        total = np.zeros(self.cohort.length, np.uint32)
        for each in group:
            total = total + masked(self.count, each, self.shown[each])[0] - expanded(own[each], len(total))
            for other in (self.shown[each] & {*mask}) - {each}:
                key = pair_key(mask[other], self.cohort.manifest, each, other, TASK)
                total = plus_mask(total, key, other, each)
        np.testing.assert_array_equal(total, self.cohort.sum_of(sorted(group)))

    def _secrets(self) -> tuple[dict[DeviceId, bytes], dict[DeviceId, bytes]]:
        """The secrets of own masks, and the keys of masks with others, that the server can put together."""
        manifest, everyone = self.cohort.manifest, frozenset(self.cohort.devices)
        after = {each: masked(self.count, each, everyone)[1] for each in self.colluders}
        helping = replace(self.cohort, members={**self.cohort.members, **after})
        shares: dict[tuple[bool, DeviceId], dict[int, bytes]] = {}
        for colluder, one in after.items():
            for of, letter in (one.held or {}).items():
                for dropped, share in ((False, letter[:SHARE]), (True, letter[SHARE:])):
                    shares.setdefault((dropped, of), {})[manifest.place(colluder)] = share
        answers: Openings = {each: sent for each, (_, sent) in self.openings.items()}
        asked = {(lists.digest, lists.senders): lists for lists, _ in self.openings.values()}
        for lists in asked.values():  # an opening is as long as its own list of senders
            helped = opened_by_all(helping, lists, self.colluders) if self.colluders else {}
            for by, given in read(lists, {**answers, **helped}).shares.items():
                for of, share in given.items() if by in answers else ():
                    shares.setdefault((of not in lists.survivors, of), {})[manifest.place(by)] = share
        own = {each: self.cohort.members[each].own for each in self.colluders}
        mask = {each: self.cohort.members[each].mask for each in self.colluders | self.replayed}
        for (dropped, of), some in shares.items():

            def is_right(secret: bytes, of: DeviceId = of, dropped: bool = dropped) -> bool:
                if dropped:
                    return public_of(secret) == manifest.mask_key(of)
                return self.cohort.commitments[of].startswith(commitment(secret, manifest))

            if (found := joined(some, manifest.threshold, is_right)) is not None:
                (mask if dropped else own)[of] = found[0]
        return own, mask


def played(game: Game) -> list[Names]:
    """What it learns: one sum at most, and of no fewer devices than is said."""
    found = game.learned()
    assert len(found) <= 1
    assert all(len(group) >= smallest(game.count, len(game.colluders)) for group in found)
    return found


def names(count: int) -> list[DeviceId]:
    return Cohort(count).devices


def lists_of(count: int) -> list[Names]:
    """All that a device accepts."""
    return [
        frozenset(some)
        for size in range(threshold(count), count + 1)
        for some in combinations(names(count), size)
    ]


def halves(chance: Random, first: Names, second: Names) -> dict[DeviceId, Names]:
    """Shows each device one of two lists, in which it is: most of them the one or the other."""
    bias = chance.choice((0.0, 0.1, 0.5))
    return {
        each: first if each in first and (each not in second or chance.random() >= bias) else second
        for each in sorted(first | second)
    }


def test_all_pairs_of_lists_of_senders() -> None:
    chance, sizes = Random(43), set[int]()
    for first, second in combinations_with_replacement(lists_of(8), 2):
        for one, other in ((first, second), (second, first)):
            shown = halves(chance, one, other)
            alike = {each: frozenset(o for o in shown if shown[o] == shown[each]) for each in shown}
            asked = alike if chance.random() < 0.7 else shown
            sizes |= {len(group) for group in played(Game(8, shown, asked))}
    assert sizes == {6, 7, 8}


def test_all_pairs_of_lists_of_survivors() -> None:
    chance, sizes, everyone = Random(43), set[int](), frozenset(names(8))
    for first, second in combinations_with_replacement(lists_of(8), 2):
        for one, other in ((first, second), (second, first)):
            asked = halves(chance, one, other)
            sizes |= {len(group) for group in played(Game(8, dict.fromkeys(everyone, everyone), asked))}
    assert sizes == {6, 7, 8}


@pytest.mark.parametrize(("count", "games"), [(8, 300), (20, 15), (40, 4), (128, 1)])
def test_random_lists_and_random_colluders(count: int, games: int) -> None:
    chance, sizes = Random(count), set[tuple[int, int]]()
    for game in range(games):
        order = chance.sample(names(count), count)
        bad = frozenset(order[: chance.choice((0, 1, chance.randint(0, colluding(count)), colluding(count)))])
        honest = order[len(bad) :]

        def some(base: list[DeviceId]) -> Names:
            return frozenset(chance.sample(base, chance.randint(min(threshold(count), len(base)), len(base))))

        senders = [some(order) | bad for _ in range(2)]
        usual = not game or chance.random() < 0.7  # all are shown the same, or nothing is ever opened
        shown = {}
        for each in honest:
            fitting = [one for one in senders if each in one]
            if fitting:
                shown[each] = fitting[0] if usual else chance.choice(fitting)
        asked = {}
        survivors = [some(sorted(senders[0])) | bad for _ in range(2)]
        for each in shown:
            fitting = [one & shown[each] for one in survivors if each in one & shown[each]]
            if fitting:
                asked[each] = fitting[0] if chance.random() < 0.9 else chance.choice(fitting)
        for opened in (asked, dict.fromkeys(asked, frozenset(asked) | bad)):
            found = played(Game(count, shown, opened, bad))
            sizes |= {(len(bad), len(group)) for group in found}
    assert sizes, "the server never read a sum, so nothing was shown"


@pytest.mark.parametrize("count", [20, 40, 100])
def test_neither_a_third_nor_42_of_100_are_read_by_two_stories_about_who_shared(count: int) -> None:
    """Lists by which a server reads sums of fewer than half, where nothing binds devices to the same ones:

    first    some (42 of 100) see a list without the others, and each calls a few of the dropped ones dropped
    second   some (34 of 100) see themselves and the dropped ones, the rest sees all
    """
    least, devices = threshold(count), names(count)
    everyone, gone = frozenset(devices), count - least
    enough = (
        size
        for size in range(least - gone, count)
        if (least - (count - size - gone) - (gone - 1)) * gone <= size * (size + gone - least)
    )
    size = next(enough)
    some, dropped = frozenset(devices[:size]), devices[size : size + gone]
    calls = size + gone - least
    shown = {each: some | {*dropped} if each in some else everyone for each in devices}
    asked = {}
    for number, each in enumerate(devices):
        rotated = [dropped[(number * calls + shift) % gone] for shift in range(calls)]
        away = {*rotated} if each in some else {*dropped} - {each}
        asked[each] = shown[each] - away
    assert played(Game(count, shown, asked)) == []

    third, dropped = frozenset(devices[: 2 * least - count]), frozenset(devices[least:])
    shown = {each: third | dropped if each in third else everyone for each in devices}
    asked = dict.fromkeys(everyone - dropped, everyone - dropped)
    assert played(Game(count, shown, asked)) == []


@pytest.mark.parametrize("count", [8, 20, 40])
def test_replayed_keys_make_no_sum_smaller(count: int) -> None:
    everyone, least = frozenset(names(count)), threshold(count)
    for honest in (least - 1, least, least + 1):
        shown = dict.fromkeys(names(count)[:honest], everyone)
        game = Game(count, shown, dict.fromkeys(shown, everyone), replayed=everyone - {*shown})
        assert played(game) == ([frozenset(shown)] if honest >= least else [])


@pytest.mark.parametrize("count", [8, 9, 20, 40])
def test_one_colluder_more_than_is_said_and_the_server_reads_every_single_device(count: int) -> None:
    """The number is the best there is for this threshold; and this shows that a game is able to be lost."""
    devices, bad = names(count), frozenset(names(count)[: colluding(count) + 1])
    honest = [each for each in devices if each not in bad]
    half = frozenset(honest[: len(honest) // 2])
    everyone = frozenset(devices)
    shown = dict.fromkeys(honest, everyone)
    asked = {each: (half if each in half else frozenset(honest) - half) | bad for each in honest}
    assert {*Game(count, shown, asked, bad).learned()} == {frozenset((each,)) for each in honest}
    with pytest.raises(ValueError, match="collude"):
        smallest(count, len(bad))
    fewer = bad - {devices[0]}
    shown[devices[0]], asked[devices[0]] = everyone, half | bad
    assert played(Game(count, shown, asked, fewer)) in ([], [half | {devices[0]}])


@pytest.mark.parametrize("count", [8, 20, 40, 100, 128])
@pytest.mark.parametrize("rounds", [1, 20])
def test_the_epsilon_that_is_printed_is_that_of_the_smallest_sum(count: int, rounds: int) -> None:
    """By another library, from the noise that devices really add, in whole numbers."""
    clip, noise, delta = 0.5, 1.0, 1e-6
    each, moved = float(variance_of(clip, noise, count)), clip * scale_of(clip, noise, count)

    def exact(devices: int) -> float:
        accountant = RdpAccountant(orders=[1.0 + number / 100 for number in range(1, 4000)])
        accountant.compose(SelfComposedDpEvent(GaussianDpEvent(sqrt(devices * each) / moved), rounds))
        return float(accountant.get_epsilon(delta))

    printed = CentralNoise(rounds * rho_of(noise), delta, by_devices=True)
    (number,) = [float(word) for word in str(printed).split("epsilon ")[1].split(" ")[:1]]
    assert number == pytest.approx(exact(smallest(count)), rel=0.005)
    assert exact(smallest(count, 1)) > number  # a colluder's noise is known, and does not count
