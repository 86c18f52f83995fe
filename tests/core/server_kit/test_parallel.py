"""Threads that take ranges of parameters: the same bits as without them, for every rule and any number."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import current_thread
from typing import Any

import numpy as np
import pytest

from fedserver.store.content.checked import Draft
from fedserver.store.content.in_file import FileTensors
from shoal.core.exchange.tensors import digest, manifest_of, pack
from shoal.core.server_kit.aggregation import parallel
from shoal.core.server_kit.aggregation.parallel import AT_ONCE, made_by, pieces_of, results, spread_over
from shoal.core.server_kit.aggregation.robust import RULES, Update, combine
from shoal.core.types import Tensors

UPDATES = 11


class Threads(ThreadPoolExecutor):
    """begun: what was given to them."""

    def __init__(self, count: int) -> None:
        super().__init__(count, "sums")
        self.begun = list[Future[Any]]()

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.begun.append(super().submit(work, *args, **kwargs))
        return self.begun[-1]


def stored(folder: Path, number: int, tensors: Tensors) -> FileTensors:
    path = folder / str(number)
    path.write_bytes(b"".join(pack(tensors)))
    return FileTensors(path, manifest_of(tensors))


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
    monkeypatch.setattr(parallel, "MIN_VALUES_FOR_THREADS", 1)


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[Threads]:
    with Threads(request.param) as found:
        yield found


@pytest.mark.parametrize("rule", RULES)
def test_a_model_that_is_written_as_it_is_made_has_the_same_bits(
    rule: str, threads: Threads, base: Tensors, updates: dict[str, Update], tmp_path: Path
) -> None:
    alone = combine(rule, base, updates, 0.5)
    start = stored(tmp_path, UPDATES, base)
    for helpers in (None, threads):
        with made_by(partial(Draft, tmp_path, 1)), spread_over(helpers):
            found = combine(rule, start, updates, 0.5)
        assert isinstance(found.model, Draft)
        assert found.model.name == digest(found.model) == digest(alone.model)
        assert found.spread == alone.spread


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("fleet", [2, 4, 7, UPDATES])
def test_the_bits_are_the_same_for_any_number_of_threads(
    rule: str, fleet: int, threads: Threads, base: Tensors, updates: dict[str, Update]
) -> None:
    some = dict(list(updates.items())[-fleet:])
    alone = combine(rule, base, some, 0.5)
    with spread_over(threads):
        found = combine(rule, base, some, 0.5)
    assert threads.begun
    assert digest(found.model) == digest(alone.model)
    assert (found.reference, found.long, found.capped, found.spread) == (
        alone.reference,
        alone.long,
        alone.capped,
        alone.spread,
    )
    assert list(found.model) == list(alone.model)


def test_few_pieces_are_in_memory_at_a_time_and_an_error_in_one_is_the_callers(
    threads: Threads, base: Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = pieces_of(manifest_of(base), 1, together=1 << 12)
    with spread_over(threads):
        taken = 0
        for piece, where in results(lambda *_: current_thread().name, [base], base, pieces):
            assert piece == pieces[taken]
            assert where.startswith("sums")
            taken += 1
            assert len(threads.begun) < taken + AT_ONCE
        assert taken == len(pieces) > 100
        with pytest.raises(ZeroDivisionError):
            list(results(lambda *_: 1 // 0, [base], base, pieces))


def test_small_models_are_not_worth_it(
    threads: Threads, base: Tensors, updates: dict[str, Update], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "MIN_VALUES_FOR_THREADS", 1 << 40)
    with spread_over(threads):
        combine("mean", base, updates)
    assert not threads.begun
