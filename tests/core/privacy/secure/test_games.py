"""Secure aggregation: the sum is exact, and what a server tries to learn of one device it does not get."""

from dataclasses import replace

import numpy as np
import pytest

from shoal.core.errors import BadPayload, DeviceFault
from shoal.core.privacy.secure import member as members
from shoal.core.privacy.secure.cohort import KEYS, MAX_COHORT, MIN_COHORT, Manifest, check_keys, parts
from shoal.core.privacy.secure.masks import Words, expanded
from shoal.core.privacy.secure.member import Member
from shoal.core.privacy.secure.shamir import PRIME, joined, split
from shoal.core.privacy.secure.total import UnrecoverableError, total

from .games import TASK, Cohort, Openings


def summed(cohort: Cohort, openings: Openings | None = None) -> Words:
    arrived = np.zeros(cohort.length, np.uint32)
    for words in cohort.words.values():
        arrived = arrived + words
    given = cohort.unmask() if openings is None else openings
    found, liars = total(cohort.lists, cohort.commitments, cohort.letters, arrived, given, TASK)
    assert not liars
    return found


def masked(count: int = 9, away: tuple[str, ...] = ()) -> Cohort:
    return Cohort(count).announce().share().mask(*away)


@pytest.mark.parametrize(("count", "away"), [(8, 0), (8, 2), (15, 4), (40, 8)])
def test_the_sum_of_those_that_answered_is_exact(count: int, away: int) -> None:
    names = Cohort(count).devices
    gone = tuple(names[:: max(1, count // away)][:away]) if away else ()
    cohort = masked(count, gone)
    found = summed(cohort)
    left = [name for name in names if name not in gone]
    assert len(left) == count - away
    np.testing.assert_array_equal(found, cohort.sum_of(left))


def test_some_may_be_silent_at_the_end_as_well() -> None:
    cohort = masked(10, ("d003",))
    openings = cohort.unmask()
    for silent in ("d000", "d007"):
        del openings[silent]
    assert len(openings) == cohort.manifest.threshold == 7
    found = summed(cohort, openings)
    np.testing.assert_array_equal(found, cohort.sum_of(list(cohort.words)))
    del openings["d001"]
    with pytest.raises(UnrecoverableError) as few:
        summed(cohort, openings)
    assert few.value.liars == frozenset()


def test_what_is_sent_looks_random_and_is_another_time_something_else() -> None:
    one, two = masked(), masked()
    for device in one.devices:
        assert not np.array_equal(one.words[device], two.words[device])
        assert not np.array_equal(one.words[device], one.values(device))
    bits = np.unpackbits(np.concatenate(list(one.words.values())).view(np.uint8))
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(bits))


@pytest.mark.parametrize("away", [(), ("d001", "d007")])
def test_masks_cancel_only_where_all_are_asked_for_the_same(away: tuple[str, ...]) -> None:
    """A server asks one device to train, and all others for updates that it knows: then the sum would be the
    update of one device."""
    victim = "d004"
    for other, found in ((TASK, True), (b"a model that learns nothing", False)):
        cohort = Cohort(9).announce().share().mask(*away, tasks={victim: other})
        known = cohort.sum_of([name for name in cohort.words if name != victim])
        assert np.array_equal(summed(cohort) - known, cohort.values(victim)) is found
    bits = np.unpackbits((summed(cohort) - known - cohort.values(victim)).view(np.uint8))
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(bits)), "a mask is left over it"


def test_a_letter_is_the_same_however_often_it_is_asked_for() -> None:
    """One key seals one letter: of two under one key, a server would learn what they differ in."""
    cohort = Cohort(9).announce()
    device, first = "d000", cohort.members["d000"]
    one, again = (members.shared(first, cohort.manifest, cohort.signer(device)) for _ in range(2))
    assert one == again
    renewed = Cohort(9).announce()
    renewed.announcements[device] = cohort.announcements[device]
    other, *_ = members.shared(first, renewed.manifest, cohort.signer(device))
    assert not {*one[0].values()} & {*other.values()}


def test_a_server_cannot_ask_again_with_another_list() -> None:
    cohort = masked(9)
    device = "d000"
    after = members.unmasked(cohort.members[device], "sum", cohort.devices)
    assert set(after) == {*cohort.devices, ""} - {device}
    # The device half forgets the member with the answer; what it has before is a member of another stage.
    for stage in (members.ANNOUNCED, members.SHARED):
        with pytest.raises(DeviceFault, match="no part in the sum"):
            members.unmasked(replace(cohort.members[device], stage=stage), "sum", cohort.devices)
    with pytest.raises(DeviceFault):
        members.masked(cohort.members[device], "sum", cohort.letters_for(device), cohort.values(device), TASK)
    with pytest.raises(DeviceFault):
        members.unmasked(cohort.members[device], "another sum", cohort.devices)


def test_a_server_that_says_that_too_many_dropped_out_gets_nothing() -> None:
    cohort = masked(9)
    with pytest.raises(BadPayload, match="a sum over 6 devices, and at least 7"):
        members.unmasked(cohort.members["d000"], "sum", cohort.devices[:6])


def test_a_manifest_that_differs_between_devices_makes_letters_that_no_one_can_read() -> None:
    cohort = Cohort(9).announce()
    other = {**cohort.announcements}
    _, impostor = members.announced("sum", cohort.signer("d008"))
    other["d008"] = members.public_of(impostor.seal) + members.public_of(impostor.mask)
    other["d008"] += cohort.signer("d008").sign(members.signed_part("sum", other["d008"]))
    cohort.share({"d000": Manifest("sum", other)})
    _, after = members.masked(
        cohort.members["d000"], "sum", cohort.letters_for("d000"), cohort.values("d000"), TASK
    )
    assert list(after.held or {}) == ["d000"]
    cohort.mask()
    with pytest.raises(UnrecoverableError) as found:
        summed(cohort)
    assert found.value.liars == {"d000"}


def refused(change: dict[str, bytes], device: str = "d000", count: int = 9) -> str:
    cohort = Cohort(count).announce()
    seen = {name: each for name, each in {**cohort.announcements, **change}.items() if each}
    with pytest.raises(BadPayload) as found:
        members.shared(cohort.members[device], Manifest("sum", seen), cohort.signer(device))
    return str(found.value)


def test_a_manifest_is_refused_where_it_is_not_sound() -> None:
    assert "a cohort of 7 devices; 8 to 128" in refused({}, count=7)
    assert "a cohort of 7 devices" in refused({"d001": b"", "d002": b""})
    assert "has no name" in refused({"d009\nd010": b"one that is taken for two"})
    assert "does not have this device's keys" in refused({"d000": b""})
    cohort = Cohort(1).announce()
    assert "d005 did not sign" in refused({"d005": cohort.announcements["d000"]})
    unsound = Cohort(9, signed=False).announce()
    unsound.announcements["d005"] = bytes(KEYS)
    with pytest.raises(BadPayload, match="not a sound one"):
        unsound.share()
    with pytest.raises(BadPayload, match="not a sound one"):  # as the server finds before
        check_keys(bytes(KEYS))
    assert "an announcement of 3 bytes" in refused({"d005": b"abc"})


def test_announcements_of_an_earlier_sum_are_not_accepted() -> None:
    earlier, now = Cohort(9, session="before").announce(), Cohort(9).announce()

    class Strict:
        def sign(self, data: bytes) -> bytes:
            return data

        def check(self, device: str, proof: bytes, data: bytes) -> None:
            if proof != data:
                raise BadPayload("signed for another sum")

    seen = {}
    for name in now.devices:
        keys = (earlier if name == "d003" else now).announcements[name][:KEYS]
        seen[name] = keys + members.signed_part("before" if name == "d003" else "sum", keys)
    with pytest.raises(BadPayload, match="signed for another sum"):
        members.shared(now.members["d000"], Manifest("sum", seen), Strict())


def test_a_member_survives_its_disk() -> None:
    cohort = Cohort(9).announce()
    for step in (cohort.share, cohort.mask):
        cohort.members = {
            name: again
            for name, one in cohort.members.items()
            if (again := Member.from_tensors(one.to_tensors())) is not None
        }
        assert len(cohort.members) == 9
        step()
    before = cohort.members["d003"]
    assert Member.from_tensors(before.to_tensors()) == before
    found = summed(cohort)
    np.testing.assert_array_equal(found, cohort.sum_of(cohort.devices))
    assert Member.from_tensors(None) is Member.from_tensors({}) is None


def test_shares_below_the_threshold_tell_nothing_and_the_prime_is_one() -> None:
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):
        assert pow(base, PRIME - 1, PRIME) == 1
    secret = bytes(range(32))
    shares = dict(enumerate(split(secret, 4, range(1, 8)), 1))
    assert joined(shares, 4, lambda found: found == secret) == (secret, frozenset())
    # With one share less, each value of the secret has one polynomial: nothing is excluded.
    some = {place: shares[place] for place in (1, 5, 6)}
    other = bytes(32)
    assert joined({**some}, 4, lambda found: True) is None
    assert joined(some, 3, lambda found: found in (secret, other)) is None


def test_a_mask_is_used_once_for_each_word() -> None:
    key = bytes(range(32))
    assert len(set(expanded(key, 4096).tolist())) > 4090
    np.testing.assert_array_equal(expanded(key, 8), expanded(key, 100)[:8])


def test_devices_are_cut_into_cohorts_of_no_less_than_the_fewest() -> None:
    assert parts([f"d{n}" for n in range(MIN_COHORT - 1)]) == []
    for count in (MIN_COHORT, MAX_COHORT, MAX_COHORT + 1, 1000):
        found = parts([f"d{n:04d}" for n in range(count)])
        assert sorted(name for part in found for name in part) == [f"d{n:04d}" for n in range(count)]
        assert all(MIN_COHORT <= len(part) <= MAX_COHORT for part in found)
