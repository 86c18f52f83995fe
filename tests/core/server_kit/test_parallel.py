"""Workers that take ranges of parameters: the same bits as one process, for every rule and any number."""

import pickle
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fedserver.store.content.checked import Draft
from fedserver.store.content.mapped import MappedTensors
from shoal.core.exchange.tensors import digest, manifest_of, pack
from shoal.core.server_kit.aggregation import parallel, robust
from shoal.core.server_kit.aggregation.parallel import Job, made_by, spread_over
from shoal.core.server_kit.aggregation.robust import RULES, Update, combine
from shoal.core.types import Array, Tensors

UPDATES = 11


class Distant:
    """Workers that get only what can be pickled, and do the jobs in another order."""

    def __init__(self, count: int) -> None:
        self.count, self.works = count, list[str]()

    def map(self, jobs: Sequence[Job]) -> list[list[Array]]:
        self.works += [job.work.__name__ for job in jobs]
        found = [pickle.loads(pickle.dumps(job)).done() for job in reversed(jobs)]
        return found[::-1]


def stored(folder: Path, number: int, tensors: Tensors) -> MappedTensors:
    path = folder / str(number)
    path.write_bytes(b"".join(pack(tensors)))
    return MappedTensors(path, manifest_of(tensors))


@pytest.fixture
def base() -> Tensors:
    chance = np.random.default_rng(1)
    return {
        "weight": chance.normal(size=(700, 901)).astype(np.float32),  # several blocks, the last one short
        "half": chance.normal(size=5).astype(np.float16),
        "double": chance.normal(size=(3, 1)),
        "one": np.array([0.25], np.float32),  # sums over one column have a shape of their own
        "nothing": np.empty((0, 4), np.float32),
        "count": np.array(7, np.int64),
    }


@pytest.fixture
def updates(base: Tensors, tmp_path: Path) -> dict[str, Update]:
    found = {}
    for number in range(UPDATES):
        chance = np.random.default_rng((2, number))
        far = 40.0 if number == 4 else 0.1  # one is too long
        model = {
            name: (array + far * chance.normal(size=array.shape)).astype(array.dtype)
            for name, array in base.items()
        }
        found[f"d{number:02}"] = Update(stored(tmp_path, number, model), 1.0 + number)
    return found


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "MIN_VALUES_FOR_WORKERS", 1)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("count", [0, 3])
def test_a_model_that_is_written_as_it_is_made_has_the_same_bits(
    rule: str, count: int, base: Tensors, updates: dict[str, Update], tmp_path: Path
) -> None:
    alone = combine(rule, base, updates, 0.5)
    start = stored(tmp_path, UPDATES, base)
    with made_by(partial(Draft, tmp_path, 1)), spread_over(Distant(count) if count else None):
        found = combine(rule, start, updates, 0.5)
    assert isinstance(found.model, Draft)
    assert found.model.name == digest(found.model) == digest(alone.model)
    assert found.spread == alone.spread


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("fleet", [2, 4, 7, UPDATES])
def test_the_bits_are_the_same_for_any_number_of_workers(
    rule: str, fleet: int, base: Tensors, updates: dict[str, Update]
) -> None:
    some = dict(list(updates.items())[-fleet:])
    alone = combine(rule, base, some, 0.5)
    for count in (1, 2, 4, 9):
        workers = Distant(count)
        with spread_over(workers):
            found = combine(rule, base, some, 0.5)
        assert digest(found.model) == digest(alone.model)
        assert (found.reference, found.long, found.capped, found.spread) == (
            alone.reference,
            alone.long,
            alone.capped,
            alone.spread,
        )
        assert list(found.model) == list(alone.model)
        assert {"_mean", "_middle", "_settle"} & set(workers.works)
        assert ("_bearings" in workers.works) == (rule != "mean")


def test_updates_that_only_this_process_has_are_not_sent(base: Tensors, updates: dict[str, Update]) -> None:
    own = {device: Update(dict(update.model), update.weight) for device, update in updates.items()}
    workers = Distant(2)
    with spread_over(workers):
        found = combine("trimmed", base, own)
    assert not workers.works
    assert digest(found.model) == digest(combine("trimmed", base, updates).model)


def test_updates_from_other_models_are_combined_as_without_workers(
    base: Tensors, updates: dict[str, Update]
) -> None:
    other = {name: (array + 1).astype(array.dtype) for name, array in base.items()}
    mixed = {
        device: Update(update.model, update.weight, other if number % 2 else None)
        for number, (device, update) in enumerate(updates.items())
    }
    alone = combine("clipped", base, mixed, 0.5)
    with spread_over(Distant(2)):
        assert digest(combine("clipped", base, mixed, 0.5).model) == digest(alone.model)


def test_small_models_are_not_worth_it(
    base: Tensors, updates: dict[str, Update], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "MIN_VALUES_FOR_WORKERS", 1 << 40)
    workers = Distant(2)
    with spread_over(workers):
        robust.combine("mean", base, updates)
    assert not workers.works
