"""`run --serve` as a whole, with a server that is played."""

import asyncio
import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedclient.config import ClientConfig, DataConfig, LimitsConfig
from fedclient.light import commands
from fedclient.placing.placement import Member, PlacementResult
from fedclient.store.blobs import BlobStore
from fedclient.store.state import DeviceFolder
from shoal.core.errors import Unavailable
from shoal.core.exchange.parts import ClusterAssignment
from shoal.core.inference.network import softmax
from shoal.core.types import Array
from shoal.shell.console import Console
from tests.client.light.asking import ask
from tests.core.inference.graphs import graph

pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

SAMPLES = np.random.default_rng(3).normal(size=(40, 4)).astype(np.float32)
FIRST, SECOND = (np.random.default_rng(seed).normal(size=(4, 3)).astype(np.float32) * 9 for seed in (1, 2))
COLLAPSED = np.zeros((4, 3), np.float32)


@pytest.fixture
def settings(tmp_path: Path) -> ClientConfig:
    np.savez(tmp_path / "new.npz", x=SAMPLES)
    return ClientConfig(state=tmp_path / "state", data=DataConfig(npz=tmp_path / "new.npz"))


def playing(monkeypatch: pytest.MonkeyPatch, settings: ClientConfig, story: list[Any]) -> None:
    """Place with these weights, one after the other; a function is called first, and None is a server that is
    away."""
    store = BlobStore(DeviceFolder(settings.state).blobs)
    file = store.keep({"graph": np.frombuffer(graph(), np.uint8)}).blob

    async def placed(*_: Any, **__: Any) -> PlacementResult:
        if not story:
            await asyncio.Event().wait()  # until the signal ends it
        step = story.pop(0)
        if callable(step):
            step()
            step = story.pop(0)
        if step is None:
            raise Unavailable("the server is away", "try again")
        kept = store.keep({"weight": step, "bias": np.zeros(3, np.float32)})
        return PlacementResult("r1", ClusterAssignment("c1"), kept, 0.0, 0, 0, (), file)

    monkeypatch.setattr(commands, "placed", placed)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def answered(path: Path) -> Any:
    status, found = ask(
        str(path), json.dumps({"x": SAMPLES.tolist()}).encode(), {"Content-Type": "application/json"}
    )
    assert status == 200
    return found


def wanted(weight: Array) -> list[int]:
    found: list[int] = (SAMPLES @ weight).argmax(axis=1).tolist()
    return found


def test_no_more_is_kept_than_the_owner_allows_and_the_model_in_use(
    settings: ClientConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(settings, limits=LimitsConfig(kept_bytes=1))
    playing(monkeypatch, small, [FIRST, SECOND, FIRST + SECOND, stop, None])
    asyncio.run(commands.serve(small, Console(), f"unix:{tmp_path / 's'}", "", every=0.0))
    folder = DeviceFolder(small.state)
    facts = json.loads((folder.model / "placement.json").read_text())
    assert {path.name for path in folder.blobs.iterdir()} == {facts["model"], facts["graph"]}


def test_a_mixture_is_followed_and_its_models_are_kept(
    settings: ClientConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chosen model stays, and what predicts with it changes: that is another answer."""
    small, path = replace(settings, limits=LimitsConfig(kept_bytes=1)), tmp_path / "s"
    store, said = BlobStore(DeviceFolder(small.state).blobs), list[Any]()
    file = store.keep({"graph": np.frombuffer(graph(), np.uint8)}).blob
    shares = [1.0, 0.75, 0.5]

    async def placed(*_: Any, **__: Any) -> PlacementResult:
        if len(shares) < 3:
            said.append((await asyncio.to_thread(answered, path))["probabilities"])
        if not shares:
            stop()
            await asyncio.Event().wait()
        first, second = (store.keep({"weight": w, "bias": np.zeros(3, np.float32)}) for w in (FIRST, SECOND))
        share = shares.pop(0)
        mixture = (Member("c1", share, first), Member("c2", 1.0 - share, second)) if share < 1.0 else ()
        where = ClusterAssignment("c1")
        return PlacementResult("r1", where, first, graph=file, mixture=mixture)

    monkeypatch.setattr(commands, "placed", placed)
    asyncio.run(commands.serve(small, Console(), f"unix:{path}", "", every=0.0))
    one, other = (softmax((SAMPLES @ weight).astype(np.float64)) for weight in (FIRST, SECOND))
    for found, share in zip(said, (1.0, 0.75, 0.5), strict=True):
        assert np.array(found) == pytest.approx(share * one + (1.0 - share) * other, abs=1e-4)
    facts = json.loads((DeviceFolder(small.state).model / "placement.json").read_text())
    members = {each["model"] for each in facts["mixture"]}
    kept = {path.name for path in DeviceFolder(small.state).blobs.iterdir()}
    assert kept == {facts["graph"], *members}


def test_predictions_are_served_until_a_signal_and_never_by_a_model_that_collapsed(
    settings: ClientConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, path = list[Any](), tmp_path / "s"

    def look() -> None:
        answers.append(answered(path))

    def last() -> None:
        look()
        stop()

    playing(monkeypatch, settings, [None, FIRST, look, COLLAPSED, look, SECOND, last, SECOND])
    found = asyncio.run(commands.serve(settings, Console(), f"unix:{path}", "", every=0.0))
    assert [each["classes"] for each in answers] == [wanted(FIRST), wanted(FIRST), wanted(SECOND)]
    assert answers[-1]["cluster"] == "c1"
    assert found["model"] == answers[-1]["model"]
