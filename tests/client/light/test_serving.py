"""Predictions over HTTP on a Unix socket: models are exchanged without a gap, and bad ones are not used."""

import asyncio
import io
import json
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedclient.config import DataConfig, WorkConfig
from fedclient.light.endpoint import Predictions, _Server
from fedclient.light.follow import Follower
from fedclient.light.serving import Endpoint, listening
from fedclient.light.verdict import MAX_SAMPLES
from fedclient.placing.placement import PlacementResult, save
from fedclient.store.blobs import BlobStore
from fedclient.store.state import GRAPH, MODEL, PLACEMENT, DeviceFolder
from shoal.core.errors import ConfigError, DiskFull, Unavailable
from shoal.core.exchange.parts import ClusterAssignment
from shoal.core.inference.graph.wire import message
from shoal.core.inference.network import softmax
from shoal.core.types import Array, Tensors
from tests.client.light.asking import ask
from tests.core.inference.graphs import graph
from tests.waiting import HANG

pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

SAMPLES = np.random.default_rng(3).normal(size=(40, 4)).astype(np.float32)
FIRST, SECOND = (np.random.default_rng(seed).normal(size=(4, 3)).astype(np.float32) * 9 for seed in (1, 2))
SAME, NAN = np.zeros((4, 3), np.float32), np.full((4, 3), np.nan, np.float32)


def weights(weight: Array) -> Tensors:
    return {"weight": weight, "bias": np.zeros(3, np.float32)}


def folder_of(path: Path, weight: Array, file: bytes | None = None) -> Path:
    """What `fedclient place` writes."""
    path.mkdir(exist_ok=True)
    (path / GRAPH).write_bytes(graph() if file is None else file)
    save_file(weights(weight), path / MODEL)
    (path / PLACEMENT).write_text(json.dumps({"run": "r1", "cluster": path.name}))
    return path


JSON = {"Content-Type": "application/json"}
BODY = json.dumps({"x": SAMPLES.tolist()}).encode()


def classes(path: str) -> list[int]:
    status, said = ask(path, BODY, JSON)
    assert status == 200, said
    found: list[int] = said["classes"]
    return found


def wanted(weight: Array) -> list[int]:
    return (SAMPLES @ weight).argmax(axis=1).tolist()


def serving(tmp_path: Path, story: Callable[[Endpoint, str, list[str]], Coroutine[Any, Any, None]]) -> None:
    np.savez(tmp_path / "new.npz", x=SAMPLES)
    data = DataConfig(npz=tmp_path / "new.npz")
    work = WorkConfig(tmp_path / "blobs", tmp_path / "account", data=data, labels=False)
    path, said = str(tmp_path / "s"), list[str]()

    async def run() -> None:
        with listening(f"unix:{path}") as at:
            endpoint = Endpoint(work, at, said.append)
            await endpoint.start()
            watching = asyncio.create_task(endpoint.watch())
            try:
                await story(endpoint, path, said)
            finally:
                watching.cancel()
                await endpoint.stop()

    asyncio.run(run())


def test_a_newer_model_is_exchanged_without_a_gap_and_a_bad_one_is_not_used(tmp_path: Path) -> None:
    async def story(endpoint: Endpoint, path: str, said: list[str]) -> None:
        assert (await asyncio.to_thread(ask, path, BODY, JSON))[0] == 503
        assert await endpoint.use(folder_of(tmp_path / "c1", FIRST)) == ""
        seen, faults = list[list[int]](), list[Exception]()
        stop, first, second = threading.Event(), threading.Event(), threading.Event()

        def keep_asking() -> None:
            while not stop.is_set():
                try:
                    seen.append(classes(path))
                    second.set() if seen[-1] == wanted(SECOND) else first.set()
                except Exception as error:
                    faults.append(error)
                    return

        asking = threading.Thread(target=keep_asking)
        asking.start()
        try:
            assert await asyncio.to_thread(first.wait, HANG)
            assert await endpoint.use(folder_of(tmp_path / "c2", SECOND)) == ""
            assert await asyncio.to_thread(second.wait, HANG)
            for name, weight, reason in (("same", SAME, "nats of information"), ("nan", NAN, "NaN")):
                assert reason in await endpoint.use(folder_of(tmp_path / name, weight))
            assert "'Loop'" in await endpoint.use(folder_of(tmp_path / "bad", FIRST, _loop()))
        finally:
            stop.set()
            await asyncio.to_thread(asking.join)
        assert not faults
        assert seen[0] == wanted(FIRST)
        assert seen[-1] == wanted(SECOND)
        assert all(each in (wanted(FIRST), wanted(SECOND)) for each in seen)
        status, model = await asyncio.to_thread(ask, path, b"", {}, "GET", "/model")
        assert (status, model["cluster"]) == (200, "c2")

    serving(tmp_path, story)


def test_classes_that_the_graphs_author_named_are_named(tmp_path: Path) -> None:
    async def story(endpoint: Endpoint, path: str, said: list[str]) -> None:
        assert await endpoint.use(folder_of(tmp_path / "c1", FIRST)) == ""
        assert "names" not in (await asyncio.to_thread(ask, path, BODY, JSON))[1]
        noted = graph(file=[(14, message([(1, "shoal.classes"), (2, '["cat", "dog", "eel"]')]))])
        assert await endpoint.use(folder_of(tmp_path / "c2", FIRST, noted)) == ""
        _, answer = await asyncio.to_thread(ask, path, BODY, JSON)
        assert answer["names"] == ["cat", "dog", "eel"]
        assert answer["classes"] == wanted(FIRST)

    serving(tmp_path, story)


def test_models_of_a_mixture_answer_together(tmp_path: Path) -> None:
    async def story(endpoint: Endpoint, path: str, said: list[str]) -> None:
        folder = folder_of(tmp_path / "c1", FIRST)
        save_file(weights(SECOND), folder / "model-2.safetensors")
        header = {"mixture": json.dumps({MODEL: 0.75, "model-2.safetensors": 0.25})}
        save_file(weights(FIRST), folder / MODEL, header)
        assert await endpoint.use(folder) == ""
        status, answer = await asyncio.to_thread(ask, path, BODY, JSON)
        assert status == 200
        first, second = (softmax((SAMPLES @ weight).astype(np.float64)) for weight in (FIRST, SECOND))
        assert np.array(answer["probabilities"]) == pytest.approx(0.75 * first + 0.25 * second, abs=1e-4)
        save_file(weights(NAN), folder / "model-2.safetensors")
        assert "NaN" in await endpoint.use(folder), "one broken model is not used in company either"
        (folder / "model-2.safetensors").unlink()
        assert "model-2" in await endpoint.use(folder)
        assert (await asyncio.to_thread(ask, path, BODY, JSON))[1] == answer

    serving(tmp_path, story)


def _loop() -> bytes:
    from tests.core.inference.graphs import LOOP

    return graph([LOOP])


def test_requests_wait_while_a_process_that_died_is_replaced(tmp_path: Path) -> None:
    async def story(endpoint: Endpoint, path: str, said: list[str]) -> None:
        endpoint.model = folder_of(tmp_path / "c1", FIRST)
        assert await endpoint.use(endpoint.model) == ""
        assert endpoint._process is not None
        died = endpoint._process.process.pid
        os.kill(died, signal.SIGKILL)
        await endpoint._process.process.wait()
        assert await asyncio.to_thread(_patiently, path) == wanted(FIRST)
        assert endpoint._process.process.pid != died
        assert "is replaced" in said[0]

    serving(tmp_path, story)


def _patiently(path: str) -> list[int]:
    """The classes, as soon as the model is open again; the connection itself is never refused."""
    while True:
        status, said = ask(path, BODY, JSON)
        if status != 503:
            found: list[int] = said["classes"]
            return found


def test_hostile_requests_are_refused_with_a_reason(tmp_path: Path) -> None:
    pickled = io.BytesIO()
    np.save(pickled, np.array([{}], dtype=object), allow_pickle=True)
    npy = io.BytesIO()
    np.save(npy, SAMPLES)

    async def story(endpoint: Endpoint, path: str, said: list[str]) -> None:
        await endpoint.use(folder_of(tmp_path / "c1", FIRST))
        cases: list[tuple[bytes, dict[str, str], int, str]] = [
            (b"", {**JSON, "Origin": "https://evil.example"}, 403, "this machine"),
            (b"", {**JSON, "Host": "evil.example"}, 403, "this machine"),
            (b"", {**JSON, "Content-Length": str(1 << 40)}, 400, "Content-Length"),
            (b"", {**JSON, "Content-Length": "-1"}, 400, "Content-Length"),
            (b'{"x": [[1, 2]]}', JSON, 400, "shape"),
            (b'{"x": [1, 2, 3, 4]}', JSON, 400, "one list of 4 numbers"),
            (b'{"x": [[1, "a"]]}', JSON, 400, "cannot be read"),
            (b'{"x": ' + b"[" * 100_000, JSON, 400, "cannot be read"),
            (b'{"x": [[1, 2, 3, NaN]]}', JSON, 400, "row 0"),
            (b'{"x": []}', JSON, 400, "no samples"),
            (b'{"x": 5}', JSON, 400, "no samples"),
            (b'{"x": [[1' + b"0" * 400 + b"]]}", JSON, 400, "cannot be read"),
            (b'{"y": 1}', JSON, 400, "cannot be read"),
            (pickled.getvalue(), {"Content-Type": "application/x-npy"}, 400, "cannot be read"),
        ]
        for body, headers, status, reason in cases:
            found, answer = await asyncio.to_thread(ask, path, body, headers)
            assert (found, reason in answer["error"]) == (status, True), (headers, answer)
        status, answer = await asyncio.to_thread(
            ask, path, npy.getvalue(), {"Content-Type": "application/x-npy", "Host": "localhost:80"}
        )
        assert status == 200
        form = {"Content-Type": "application/x-www-form-urlencoded"}  # as curl -d has it
        body = json.dumps({"x": SAMPLES.tolist()}).encode()
        assert (await asyncio.to_thread(ask, path, body, form))[0] == 200
        assert answer["probabilities"] == pytest.approx(
            softmax((SAMPLES @ FIRST).astype(np.float64)), abs=1e-4
        )

    serving(tmp_path, story)


@pytest.mark.parametrize(("error", "said"), [(ConnectionResetError(), False), (ValueError("a bug"), True)])
def test_a_program_that_hangs_up_leaves_no_traceback(
    error: Exception, said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        raise error
    except Exception:
        _Server.handle_error(_Server.__new__(_Server), None, ("local", 0))
    assert ("Traceback" in capsys.readouterr().err) is said


def test_the_process_keeps_no_more_samples_than_it_tries_a_model_on(tmp_path: Path) -> None:
    np.savez(tmp_path / "new.npz", x=np.zeros((1000, 4), np.float32))
    data = DataConfig(npz=tmp_path / "new.npz")
    kept = Predictions(WorkConfig(tmp_path / "blobs", tmp_path / "account", data=data, labels=False))._data.x
    assert kept.shape == (MAX_SAMPLES, 4)
    assert kept.base is None, "it is no view of all of them"


@pytest.mark.parametrize("address", ["0.0.0.0:0", "example.org:80", "localhost"])
def test_only_this_machine_is_served(address: str) -> None:
    with pytest.raises(ConfigError), listening(address):
        pass


def looked(follower: Follower, times: int) -> None:
    async def story() -> None:
        for _ in range(times):
            await follower.look()

    asyncio.run(story())


def test_a_follower_exchanges_models_and_goes_back_when_the_server_does(tmp_path: Path) -> None:
    """Good, worse (refused once, and not tried again), good again, and a server that is away."""
    folder = DeviceFolder(tmp_path)
    store, used, said = BlobStore(folder.blobs), list[str](), list[str]()
    file = store.keep({"graph": np.frombuffer(graph(), np.uint8)}).blob
    answers = [FIRST, FIRST, SAME, SAME, None, FIRST, SECOND]

    async def place(counted: object) -> PlacementResult:
        weight = answers.pop(0)
        if weight is None:
            raise Unavailable("the server is away", "try again")
        kept = store.keep(weights(weight))
        return PlacementResult("r1", ClusterAssignment("c1"), kept, 0.0, 0, 0, (), file)

    async def use(model: Path) -> str:
        assert (model / GRAPH).read_bytes() == graph()
        found = (model / MODEL).read_bytes()
        refused = "it is worse" if bytes(weights(SAME)["weight"]) in found else ""
        used.append(refused or "used")
        return refused

    looked(Follower(folder, store, place, use, said.append), 7)
    assert used == ["used", "it is worse", "used", "used"]
    assert any("the earlier one stays: it is worse" in line for line in said)
    assert any("the server is away" in line for line in said)
    assert bytes(SECOND) in (folder.model / MODEL).read_bytes()
    assert not (tmp_path / "model-next").exists()


def test_a_model_that_did_not_fit_on_the_disk_is_stored_with_the_next_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = DeviceFolder(tmp_path)
    store, said, full = BlobStore(folder.blobs), list[str](), [folder.model]
    file = store.keep({"graph": np.frombuffer(graph(), np.uint8)}).blob

    async def place(counted: object) -> PlacementResult:
        return PlacementResult("r1", ClusterAssignment("c1"), store.keep(weights(FIRST)), 0.0, 0, 0, (), file)

    async def use(model: Path) -> str:
        return ""

    def saved(result: PlacementResult, store: BlobStore, where: Path) -> Path:
        if where in full:
            full.clear()
            raise DiskFull("no room for the model", "free some space")
        return save(result, store, where)

    monkeypatch.setattr("fedclient.light.follow.save", saved)
    looked(Follower(folder, store, place, use, said.append), 3)
    assert said[0] == "no newer model: no room for the model (free some space)"
    assert bytes(FIRST) in (folder.model / MODEL).read_bytes()
    assert len(said) == 2, "it is stored once"
