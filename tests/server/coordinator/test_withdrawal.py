"""Withdrawal of a device: what it costs, what it leaves as it was, and what comes of it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedserver.authority.answers import Withdrawn
from fedserver.coordinator.device_api import DeviceApi
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.coordinator.release_api import ReleaseApi
from fedserver.coordinator.status_types import WithdrawnRun
from fedserver.store.identities.audit import Event
from shoal.core.algorithms.flux import ALGORITHM
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.errors import NotFound, Refused
from shoal.core.exchange.payload import BlobRef
from shoal.core.exchange.tensors import digest
from shoal.core.privacy.accountant import Unmetered
from shoal.core.types import ModelKey, RunId, Tensors
from shoal.simulation.simulated import Simulated
from tests.fleet import data, first_model, learner
from tests.server.authority.peers import Peer, World, lines_of, play, refused, world
from tests.server.coordinator.test_releases import reaching
from tests.server.servers import DEVICES, ROUNDS, hands, models, spec, start
from tests.server.toys import Answer, honest, same_models, serve
from tests.waiting import until

REAL, LATE = 6, "d6"
APART = {"pooling": 0.0, "aggregation": "mean"}
FLUX = {
    "rounds": 9,
    "epochs": 2,
    "learning_rate": 0.1,
    "batch_size": 16,
    "inputs": "raw",
    "privacy": "off",
    "warm_up": "rounds",
    "classes": 10,
}


async def withdrawn(found: World, device: str, *replay: RunId, confirmed: bool = True) -> Withdrawn:
    return await found.api.withdraw(device, "asked to", confirmed, replay)


def real(number: int) -> Answer:
    """A device of digits whose releases are noisy."""
    noise = np.random.default_rng(number)
    context = DeviceContext(
        learner(), Views.of(data(number)), "cpu", 0, noise, account=Unmetered(noise.bytes)
    )
    return Simulated(ALGORITHM.device(), context, f"d{number}", {})


async def trained(found: World, late: bool, **parameters: Any) -> dict[ModelKey, Tensors]:
    """The models of a run of real devices in two groups, one of whom may join when these have formed."""
    answers = {f"d{number}": real(number) for number in range(REAL + 1)}
    names = [name for name in answers if name != LATE]
    for name in (*names, *([LATE] if late else [])):
        await found.device(name)
    coordinator = found.coordinator
    policy = RoundPolicy(minimum=REAL)
    await start(
        coordinator,
        first_model(),
        name="flux",
        algorithm="flux",
        parameters={**FLUX, **parameters},
        policy=policy,
    )
    run = coordinator.runs["flux"]
    serving = [asyncio.create_task(serve(DeviceApi(coordinator, name), answers[name])) for name in names]
    if late:
        while True:
            change, state = run.changed.next(), run.engine.state
            if getattr(state, "clustering", None) is not None:
                break
            assert run.active, run.reason
            await change.wait()
        serving.append(asyncio.create_task(serve(DeviceApi(coordinator, LATE), answers[LATE])))
    await asyncio.gather(*serving)
    return models(coordinator, "flux")


def test_the_models_of_other_clusters_keep_their_bits_and_are_those_of_a_run_without_it(
    tmp_path: Path,
) -> None:
    async def alone() -> dict[ModelKey, Tensors]:
        async with world(tmp_path / "without") as found:
            return await trained(found, False, **APART)

    async def story(found: World) -> None:
        before = await trained(found, True, **APART)
        (price,) = (await withdrawn(found, LATE, confirmed=False)).runs
        assert (price.with_it, price.grouped, price.devices, price.epsilon) == (("c0",), True, REAL, 0.0)
        (run,) = (await withdrawn(found, LATE)).runs
        (release,) = (await withdrawn(found, LATE)).releases
        after, never = models(found.coordinator, "flux"), await alone()
        assert (run.with_it, run.without_it, run.grouped) == (("c0",), ("c1",), False)
        assert (release.with_it, release.without_it) == (("c0",), ("c1",))
        assert same_models(after, before), "also of its own cluster, as long as nothing is replayed"
        assert digest(after["c1"]) == digest(never["c1"])
        assert digest(after["c0"]) != digest(never["c0"])
        state: Any = found.coordinator.runs["flux"].engine.state
        known = {*state.metrics, *state.descriptors, *state.assignments}
        assert known == {f"d{number}" for number in range(REAL)}

    play(story, tmp_path / "with")


def test_where_clusters_share_steps_all_of_them_have_it(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        await trained(found, True)
        (run,) = (await withdrawn(found, LATE, confirmed=False)).runs
        assert (run.with_it, run.without_it) == (("c0", "c1"), ())

    play(story, tmp_path)


async def begun(found: World, rounds: int, late: int) -> tuple[list[Peer], list[Any]]:
    """A run of toys whose last device is there only after `late` rounds; after `rounds` rounds in all."""
    await start(found.coordinator, policy=RoundPolicy(minimum=2), parameters={"rounds": 5})
    run = found.coordinator.runs["toy"]
    peers = [await found.device(f"d{number}") for number in range(DEVICES)]
    those = [await hands(found.coordinator, number) for number in range(DEVICES)]
    for number in range(rounds):
        here = those if number >= late else those[:-1]
        run.held = True  # until all of them are there
        for each in here:
            await each.link.next_task(0.0)
        run.held = False
        tasks = [await each.task() for each in here]
        run.held = True
        for which, (each, task) in enumerate(zip(here, tasks, strict=True)):
            assert task.round == number + 1
            await each.do(task, honest(which))
        await until(lambda number=number: run.engine.round == number + 2)  # type: ignore[misc]
    run.held = False
    return peers, those


async def finished(found: World, numbers: range, answer: Callable[[int], Answer] = honest) -> None:
    """Until every run is over. Rounds open once all of these devices are there."""
    for run in found.coordinator.runs.active():
        run.held = True
    serving = [asyncio.create_task(serve(DeviceApi(found.coordinator, f"d{n}"), answer(n))) for n in numbers]
    for run in found.coordinator.runs.active():
        await until(lambda run=run: all(run.present(f"d{n}") for n in numbers))  # type: ignore[misc]
        run.held = False
    await asyncio.gather(*serving)


def test_a_run_that_goes_on_repeats_what_had_it_and_the_price_is_as_stated(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        peers, those = await begun(found, 4, 2)
        for each in those:
            await each.task()
        run = found.coordinator.runs["toy"]
        clean = {
            n: v.sha256 for n, v in (await OperatorApi(found.coordinator).clusters("toy"))[0].versions.items()
        }
        price = await withdrawn(found, "d2", confirmed=False)
        assert price.runs == (WithdrawnRun("toy", ("global",), back_to=3, rounds=2, devices=2),)
        assert run.engine.state.progress == 4, "only a price was asked for"
        (left,) = (await withdrawn(found, "d2", "toy")).runs
        assert left == WithdrawnRun("toy", replayed=True)
        assert (run.engine.state.progress, digest(models(found.coordinator)["global"])) == (2, clean[3])
        kept = await found.coordinator.storage.call(found.coordinator.storage.runs.versions, "toy")
        assert kept == [2, 3, 6], "none of those with it"
        async with peers[2].channel() as channel:
            error, fault = await refused(peers[2].link(channel).next_task(0.0))
            assert (fault.code, "was withdrawn" in str(error.details())) == ("revoked", True)
        await finished(found, range(2))
        assert (await withdrawn(found, "d2")).runs == ()
        (line,) = lines_of(found.state, Event.WITHDRAWN)
        assert (line["facts"]["device"], line["facts"]["runs"]) == ("d2", "toy")
        never = tmp_path / "never"
        async with world(never) as other:
            await start(other.coordinator, policy=RoundPolicy(minimum=2), parameters={"rounds": 2})
            for number in range(2):
                await other.device(f"d{number}")
            await finished(other, range(2))
            assert digest(models(other.coordinator)["global"]) == clean[3], (
                "what it went back to never had it"
            )

    play(story, tmp_path / "s")


def test_a_run_that_is_over_goes_on_and_is_released_though_not_better(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        for number in range(DEVICES):
            await found.device(f"d{number}")
        await start(found.coordinator, policy=RoundPolicy(minimum=2))
        await finished(found, range(DEVICES), lambda n: reaching(0.9, n))
        releases = ReleaseApi(found.coordinator)
        price = await withdrawn(found, "d2", confirmed=False)
        assert (price.runs[0].back_to, price.runs[0].rounds, price.runs[0].devices) == (1, ROUNDS, 2)
        assert [(each.release, each.with_it, each.channels) for each in price.releases] == [
            (f"toy@{ROUNDS}", ("global",), ("stable",))
        ]
        await withdrawn(found, "d2", "toy")
        (marked,) = await releases.all()
        assert (marked.withdrawn, marked.revoked) == (("d2",), ())
        assert found.coordinator.runs["toy"].active
        await finished(found, range(2), lambda n: reaching(0.8, n))
        again = await releases.show()
        assert (again.summary.release, again.summary.withdrawn) == (f"toy@{ROUNDS}.2", ())
        assert again.summary.accuracy == pytest.approx(0.8)

    play(story, tmp_path)


def test_what_is_not_stored_any_more_is_started_again_and_says_so(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        for number in range(DEVICES):
            await found.device(f"d{number}")
        await start(found.coordinator, parameters={"rounds": 6})
        await finished(found, range(DEVICES))
        (run,) = (await withdrawn(found, "d0", confirmed=False)).runs
        assert (run.back_to, run.rounds, run.devices) == (0, 6, 2)
        for bad, error in (("toy", NotFound), ("other", NotFound)):
            with pytest.raises(error):
                await withdrawn(found, "d0", bad)
        await start(found.coordinator, name="idle")
        with pytest.raises(Refused, match="has no report of d0"):
            await withdrawn(found, "d0", "idle")
        assert await found.coordinator.storage.call(found.coordinator.storage.journal.standings) is not None
        assert lines_of(found.state, Event.WITHDRAWN) == [], "nothing was done"

    play(story, tmp_path)


def test_what_cannot_be_read_counts_as_with_it_and_hides_no_other_run(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        storage = found.coordinator.storage

        def rewrite() -> None:
            """A row that another version, or a bug, has written."""
            with storage.store.database.transaction():
                storage.store.database.execute("UPDATE timeline SET summary = x'00' WHERE run = 'rotten'")

        for number in range(DEVICES):
            await found.device(f"d{number}")
        for name in ("rotten", "sound"):
            await start(found.coordinator, name=name, policy=RoundPolicy(minimum=2))
            await finished(found, range(2))
        await storage.call(rewrite)
        (rotten,) = (await withdrawn(found, "d2")).runs
        assert (rotten.run, rotten.with_it, rotten.back_to) == ("rotten", ("global",), 0)
        assert "cannot be read" in rotten.unknown
        assert [each.run for each in (await withdrawn(found, "d1", confirmed=False)).runs] == [
            "rotten",
            "sound",
        ]

    play(story, tmp_path)


def test_a_run_that_began_with_such_a_model_has_it_too(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        for number in range(DEVICES):
            await found.device(f"d{number}")
        await start(found.coordinator, policy=RoundPolicy(minimum=2))
        await finished(found, range(DEVICES))
        await start(
            found.coordinator, models(found.coordinator)["global"], name="next", policy=RoundPolicy(minimum=2)
        )
        await finished(found, range(2))
        toy, following = (await withdrawn(found, "d2", confirmed=False)).runs
        assert (toy.run, toy.inherited) == ("toy", "")
        assert (following.run, following.inherited, following.with_it) == ("next", "toy", ("global",))

    play(story, tmp_path)


def test_a_run_that_went_on_from_a_release_with_it_has_it_too(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        for number in range(DEVICES):
            await found.device(f"d{number}")
        await start(found.coordinator, policy=RoundPolicy(minimum=2))
        await finished(found, range(DEVICES))
        await ReleaseApi(found.coordinator).create("toy", "v1")
        asked = spec(name="next", base="toy@v1", policy=RoundPolicy(minimum=2, wait_for_devices=0.0))
        await OperatorApi(found.coordinator).start_run(asked, None)
        await finished(found, range(2))
        _, following = (await withdrawn(found, "d2", confirmed=False)).runs
        assert (following.run, following.inherited, following.with_it) == ("next", "toy", ("global",))
        with pytest.raises(NotFound) as fault:
            await withdrawn(found, "d2", "next", confirmed=False)
        assert "start toy again" in fault.value.hint

    play(story, tmp_path)


def test_a_report_in_the_open_round_does_not_count_and_what_is_stored_is_gone(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        _, those = await begun(found, 1, 0)
        for which, each in enumerate(those[1:], 1):
            await each.do(await each.task(), honest(which))
        run, storage = found.coordinator.runs["toy"], found.coordinator.storage
        assert {"d1", "d2"} == {*run.engine.reported}
        database = storage.store.database

        def answered() -> None:
            with database.transaction():
                database.execute("INSERT INTO answered (device, day) VALUES ('d2', 1)")

        await storage.call(answered)
        upload = storage.blobs.receive("d2", BlobRef("ab" * 32, 99), 0, 1 << 20)
        upload.append(b"the first half of a model")
        upload.close()
        await withdrawn(found, "d2")
        assert not list(storage.blobs.folder.glob("partial/d2/*"))
        assert run.engine.round == 3, "the open round is asked again"
        await finished(found, range(2))
        for table in ("reports", "answered"):
            query = f"SELECT 1 FROM {table} WHERE device = 'd2'"
            assert await storage.call(lambda asked: list(database.query(asked)), query) == []
        history = await OperatorApi(found.coordinator).history("toy")
        own = [each for found in history for each in found.devices if each.device == "d2"]
        assert {(each.loss, each.accuracy, each.examples) for each in own} == {(None, None, 0)}
        assert "d2" not in run.engine.state.metrics

    play(story, tmp_path)


def test_its_name_is_no_others_any_more(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        device = await found.device("d0")
        await withdrawn(found, "d0")
        _, fault = await refused(Peer(await found.token(), "d0", found.listeners.address).join())
        assert "was withdrawn" in fault.message
        assert "another name" in fault.hint
        _, fault = await refused(device.come_back())
        assert (fault.code, "was withdrawn" in fault.message) == ("revoked", True)
        with pytest.raises(Refused, match="withdrawn permanently"):
            await found.api.approve("d0")
        await found.api.revoke("d0", "")
        assert found.peers.known()[0].standing.value == "withdrawn"
        await found.device("d0-again")

    play(story, tmp_path)


def test_a_run_begins_with_no_encoder_that_was_made_with_it(tmp_path: Path) -> None:
    async def basis(found: World, name: str) -> Any:
        """What a run of the same network would describe data by."""
        parameters = {**FLUX, **APART, "privacy": "balanced"}
        await start(found.coordinator, first_model(), name=name, algorithm="flux", parameters=parameters)
        state: Any = found.coordinator.runs[name].engine.state
        await OperatorApi(found.coordinator).stop_run(name, "")
        return state.basis

    async def story(found: World) -> None:
        await trained(found, True, **APART, privacy="balanced")
        made = await basis(found, "before")
        assert made is not None
        await withdrawn(found, LATE)
        assert (await basis(found, "late")).names == made.names, "it came when the encoder was frozen"
        price = (await withdrawn(found, "d0", confirmed=False)).runs[0]
        assert (price.back_to, price.epsilon, price.devices) == (0, 5.0, REAL)
        await withdrawn(found, "d0")
        assert await basis(found, "early") is None

    play(story, tmp_path)
