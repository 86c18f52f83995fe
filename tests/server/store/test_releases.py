"""Releases and channels on disk: what a release needs stays, whatever becomes of the run's own rows."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedserver.store.records import Move, Rollout, Standing
from fedserver.store.releases import STABLE, Card, ReleaseRecord
from fedserver.store.store import Store
from shoal.core.engine.round.attendance import Memory
from shoal.core.errors import NotFound
from shoal.core.exchange.messages import Evaluated
from shoal.core.rollout import PROMOTED, STOPPED, Counts
from tests.server.store.conftest import Engine
from tests.server.store.samples import RECORD, SPEC, blobs_in, checkpoint, closed


def release(store: Store, label: str = "1") -> ReleaseRecord:
    """Of the newest checkpoint of the run."""
    figures = {"d0": Evaluated(0.75, 0.5, 8)}
    card = Card(f"mnist@{label}", "mnist", SPEC, 2.5, 1, 1, "ab" * 32, {"global": ("d0",)}, figures, {})
    return ReleaseRecord(card, store.runs.checkpoint("mnist"), "ab12", b"\x00signed\xff")


def test_a_release_keeps_its_blobs_and_reads_as_it_was_written(engine: Engine, tmp_path: Path) -> None:
    state = tmp_path / "state"
    store = engine.open(state)
    store.runs.add(RECORD, checkpoint(store, 0.0))
    made = release(store)
    move = Move(STABLE, "mnist@1", True, 3.5, "it was better")
    store.runs.save_round("mnist", closed(1), checkpoint(store, 1.0), 0, Memory())
    store.runs.end("mnist", Standing.FINISHED, "done", 4.0, made, move)
    assert store.runs.prune("mnist") == 1
    store.close()
    store = engine.open(state)
    store.clean_up()
    found = store.releases.get("mnist@1")
    assert (found.card.text, found.structure) == (made.card.text, json.loads(json.dumps(made.structure)))
    assert (found.authority, found.signature) == ("ab12", b"\x00signed\xff")
    assert store.releases.channels() == {STABLE: move}
    assert made.blobs < blobs_in(engine, state), "the checkpoint that had them is gone"
    assert [store.releases.has(each) for each in ("mnist@1", "mnist@2", STABLE)] == [True, False, False]
    store.releases.use(other := Move("other", "mnist@1", at=4.5))
    assert (store.releases.last_of(STABLE), store.releases.last_of("other")) == (move, other)
    store.releases.use(Move("other", "", at=4.75))
    store.releases.use(Move(STABLE, "", at=5.0))
    assert store.releases.last_of(STABLE) == Move(STABLE, "", at=5.0)
    assert store.releases.last_of("mnist@1") is None
    assert store.releases.channels() == {}
    assert [each.release for each in store.releases.moves()[STABLE]] == ["mnist@1", ""]
    store.releases.remove(["mnist@1"])
    assert not made.blobs & blobs_in(engine, state)
    with pytest.raises(NotFound, match="there is no release 'mnist@1'"):
        store.releases.get("mnist@1")
    store.close()


def test_a_run_goes_with_its_releases_and_none_of_it_is_left(engine: Engine, tmp_path: Path) -> None:
    store = engine.open(tmp_path / "state")
    store.runs.add(RECORD, checkpoint(store, 0.0))
    store.releases.add(release(store))
    store.releases.add(release(store, "2"))
    assert store.releases.names("mnist") == ["mnist@1", "mnist@2"]
    store.runs.end("mnist", Standing.STOPPED, "", 4.0)
    store.runs.remove("mnist")
    assert (store.releases.names(), blobs_in(engine, tmp_path / "state")) == ([], set())
    store.close()


def test_a_rollout_reads_as_it_was_written_and_a_device_counts_once(engine: Engine, tmp_path: Path) -> None:
    begun = Rollout("4f", STABLE, "mnist@1", "mnist@2", 0.1, 0.01, 2.5, True)
    few, more = Counts(1 << 40, 5, 4, 3, 2, 1), Counts(1 << 40, 6, 10_000, 4, 3, 2)
    store = engine.open(tmp_path / "state")
    releases, rollouts = store.releases, store.releases.rollouts
    releases.use(Move(STABLE, "mnist@1", at=1.0))
    rollouts.begin(begun)
    rollouts.begin(wider := replace(begun, share=0.5, pinned=False))
    releases.count(wider, "pi", "c1", few)
    releases.count(wider, "pi", "c1", more)
    releases.count(wider, "attic", "c2", few)
    assert rollouts.going(STABLE) == wider
    store.close()
    store = engine.open(tmp_path / "state")
    releases, rollouts = store.releases, store.releases.rollouts
    assert rollouts.counts("4f") == {"attic": ("c2", few), "pi": ("c1", more)}
    releases.count(wider, "pi", "c1", more, promoted := replace(wider, ended=3.5, outcome=PROMOTED, why="ok"))
    assert (rollouts.going(STABLE), rollouts.latest()) == (None, [promoted])
    assert releases.channels() == {STABLE: Move(STABLE, "mnist@2", False, 3.5, "ok")}
    rollouts.begin(second := replace(begun, rollout="50", began=4.0))
    releases.count(second, "pi", "c1", few, stopped := replace(second, ended=5.0, outcome=STOPPED, why="bad"))
    assert (rollouts.latest(), releases.channels()[STABLE].release) == ([stopped, promoted], "mnist@2")
    store.close()
