"""Devices that lie in a sum: it is right all the same, or a liar is named, and never an honest device."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from random import Random

import numpy as np
import pytest

from shoal.core.privacy.secure import member as members
from shoal.core.privacy.secure.cohort import threshold, tolerated
from shoal.core.privacy.secure.masks import derived, sealed
from shoal.core.privacy.secure.opening import opening
from shoal.core.privacy.secure.shamir import PRIME, SHARE, joined, split
from shoal.core.privacy.secure.total import UnrecoverableError, total
from shoal.core.types import DeviceId

from .games import TASK, Cohort, Openings

SIZES = [8, 9, 20, 40, 100]


@lru_cache(2)
def shared(count: int) -> Cohort:
    return Cohort(count, length=5).announce().share()


def begun(count: int) -> Cohort:
    """A cohort up to its letters, which may be changed."""
    once = shared(count)
    return replace(once, members={**once.members}, letters={**once.letters}, words={})


def outcome(cohort: Cohort, openings: Openings) -> tuple[bool, set[DeviceId]]:
    """Whether the sum came out, which is then right, and who is said to have lied."""
    arrived = np.zeros(cohort.length, np.uint32)
    for words in cohort.words.values():
        arrived = arrived + words
    try:
        found, liars = total(cohort.lists, cohort.commitments, cohort.letters, arrived, openings, TASK)
    except UnrecoverableError as error:
        return False, {*error.liars}
    np.testing.assert_array_equal(found, cohort.sum_of(list(cohort.words)))
    return True, {*liars}


def returned(
    cohort: Cohort, liar: DeviceId, change: Callable[[dict[DeviceId, bytes]], object]
) -> dict[DeviceId, bytes]:
    """The opening of a device that has changed its shares before."""
    own = cohort.members[liar]
    given = {
        of: letter[:SHARE] if of in cohort.words else letter[SHARE:]
        for of, letter in (own.held or {}).items()
    }
    change(given)
    return opening(cohort.lists, liar, given, own.common or {}, own.noise)


def dealt(cohort: Cohort, liar: DeviceId, shares: Mapping[DeviceId, bytes]) -> None:
    """The liar deals these pairs of shares instead of its own, and all that shows is as it should be."""
    member, manifest = cohort.members[liar], cohort.manifest
    for to, both in shares.items():
        key = derived((member.common or {})[to], manifest.digest, f"letter\n{liar}\n{to}")
        letter = sealed(key, both) + members.hashes_of(both, manifest, liar, to)
        cohort.letters[liar] = {**cohort.letters[liar], to: letter}


def a_share(chance: Random) -> bytes:
    return chance.randrange(PRIME).to_bytes(SHARE, "big")


def up_to(count: int, chance: Random) -> list[int]:
    """How many lie: none, one, the most that are tolerated and one more, and all but the victim."""
    most = tolerated(count)
    return sorted({0, 1, most // 2, most, most + 1, chance.randint(most, count - 1), count - 1})


@pytest.mark.parametrize("count", SIZES)
def test_wrong_shares_of_one_victim_name_those_that_return_them(count: int) -> None:
    chance, cohort = Random(43), begun(count).mask()
    right, victim = cohort.unmask(), cohort.devices[3]
    others = [device for device in cohort.devices if device != victim]
    for number in up_to(count, chance):
        openings = dict(right)
        liars = {*chance.sample(others, number)}
        for liar in liars:
            openings[liar] = returned(cohort, liar, lambda given: given.update({victim: a_share(chance)}))
        assert outcome(cohort, openings) == (number <= tolerated(count), liars)


@pytest.mark.parametrize("count", SIZES)
def test_with_drop_outs_as_many_may_lie_as_are_left_above_the_threshold(count: int) -> None:
    chance = Random(44)
    away = chance.sample(Cohort(count).devices, tolerated(count) // 2)
    cohort = begun(count).mask(*away)
    openings, present = cohort.unmask(), list(cohort.words)
    liars = {*chance.sample(present, len(present) - threshold(count))}
    for liar in liars:  # of all, those that have dropped out too
        openings[liar] = returned(
            cohort, liar, lambda given: given.update({of: a_share(chance) for of in given})
        )
    assert outcome(cohort, openings) == (True, liars)
    one = next(device for device in present if device not in liars)
    openings[one] = returned(cohort, one, lambda given: given.update({present[0]: a_share(chance)}))
    assert outcome(cohort, openings) == (False, liars | {one})
    del openings[one]
    assert outcome(cohort, openings) == (False, liars)


@pytest.mark.parametrize("count", SIZES)
def test_a_dealer_of_shares_that_do_not_fit_together_is_corrected_or_named(count: int) -> None:
    """It gives away the right hashes of them, so each holder returns what it got, and none is blamed."""
    chance, radius = Random(45), (count - threshold(count)) // 2
    liar = Cohort(count).devices[2]
    for number in {radius, radius + 1} - {0} if count > 40 else {1, radius, radius + 1, count - 1} - {0}:
        cohort = begun(count)
        others = [device for device in cohort.devices if device != liar]
        some = [others[0], *chance.sample(others[1:], number - 1)]  # the first is looked at first
        dealt(cohort, liar, {to: a_share(chance) + a_share(chance) for to in some})
        openings = cohort.mask().unmask()
        assert outcome(cohort, openings) == (number <= radius, {liar})


def test_a_dealer_of_another_secret_than_it_committed_itself_to_is_named() -> None:
    for away in ((), ("d002",)):
        cohort = begun(9)
        pairs = [split(bytes(32), 7, range(1, 10)) for _ in range(2)]
        letters = {
            device: own + mask
            for device, own, mask in zip(cohort.devices, *pairs, strict=True)
            if device != "d002"
        }
        dealt(cohort, "d002", letters)
        cohort.mask(*away)
        assert outcome(cohort, cohort.unmask()) == (False, {"d002"})


@pytest.mark.parametrize("count", SIZES[:-1])
def test_letters_that_no_one_can_read_name_their_dealer_and_a_few_of_them_no_one(count: int) -> None:
    """A device that says that it could not read a letter may have lied itself: so a few may say so."""
    most = tolerated(count)
    for number in (most, most + 1):
        cohort = begun(count)
        liar, *others = cohort.devices
        for to in others[:number]:
            cohort.letters[liar] = {**cohort.letters[liar], to: bytes(len(cohort.letters[liar][to]))}
        assert outcome(cohort.mask(), cohort.unmask()) == (number == most, {liar} if number > most else set())


@pytest.mark.parametrize("count", SIZES[:-1])
def test_openings_that_are_sealed_for_no_one_spoil_nothing_and_name_their_owner(count: int) -> None:
    cohort = begun(count).mask()
    openings = cohort.unmask()
    liars = {*cohort.devices[: tolerated(count)]}
    for liar in liars:
        openings[liar] = {to: sent if to == "" else bytes(len(sent)) for to, sent in openings[liar].items()}
    assert outcome(cohort, openings) == (True, liars)
    # With one more, no one can tell who has sealed wrongly, and who has opened wrongly.
    more = cohort.devices[len(liars)]
    openings[more] = {to: sent if to == "" else bytes(len(sent)) for to, sent in openings[more].items()}
    assert outcome(cohort, openings) == (False, set())


def test_a_key_in_parts_that_do_not_fit_together_names_its_owner() -> None:
    cohort = begun(9).mask()
    openings = cohort.unmask()
    whole = openings["d004"][""]
    openings["d004"] = {**openings["d004"], "": whole[:-1] + bytes([whole[-1] ^ 1])}
    assert outcome(cohort, openings) == (True, {"d004"})


@pytest.mark.parametrize("seed", range(43, 63))
def test_whatever_as_many_do_as_are_tolerated_no_honest_device_is_named(seed: int) -> None:
    chance = Random(seed)
    count = chance.choice((8, 9, 13, 20))
    liars = {*chance.sample(Cohort(count).devices, tolerated(count))}
    cohort = begun(count)
    dealers = {liar for liar in liars if chance.random() < 0.5}
    for liar in dealers:
        others = [device for device in cohort.devices if device != liar]
        some = chance.sample(others, chance.randint(1, len(others)))
        dealt(cohort, liar, {to: a_share(chance) + a_share(chance) for to in some})
    cohort.mask(*(liar for liar in sorted(liars) if chance.random() < 0.2))
    openings = cohort.unmask()
    for liar in sorted(liars & {*openings}):
        honest = sorted({*cohort.devices} - liars)
        targets = chance.sample(honest, chance.randint(1, len(honest)))
        wrong = {of: a_share(chance) for of in targets}
        if chance.random() < 0.7:
            openings[liar] = returned(cohort, liar, lambda given, wrong=wrong: given.update(wrong))  # type: ignore[misc]
        if chance.random() < 0.3:
            openings[liar] |= {to: bytes(81) for to in targets if to in openings[liar]}
        if chance.random() < 0.2:
            del openings[liar]
    complete, named = outcome(cohort, openings)
    assert named <= liars
    assert complete or named, "a sum was spoiled, and no one is named"
    assert complete or dealers, "only who deals can spoil a sum"


@pytest.mark.parametrize("count", [*SIZES, 128])
def test_shares_are_decoded_uniquely_up_to_half_of_those_above_the_threshold(count: int) -> None:
    chance, least, secret = Random(count), threshold(count), bytes(range(32))
    for present in {least, (least + count) // 2, count}:
        radius = (present - least) // 2
        places = sorted(chance.sample(range(1, count + 1), present))
        shares = dict(zip(places, split(secret, least, places), strict=True))
        for number in {0, 1, radius} - set(range(radius + 1, 2)):
            wrong = {*places[: number // 2], *chance.sample(places[number // 2 :], number - number // 2)}
            changed = shares | {place: a_share(chance) for place in wrong}
            found = joined(changed, least, lambda found: found == secret)
            assert found is not None
            assert found[0] == secret
            assert found[1] in ({*wrong}, set())
        changed = shares | {place: a_share(chance) for place in places[: radius + 1]}
        assert joined(changed, least, lambda found: found == secret) is None
