"""How a run is started, for an operator or a series: it is checked, and on disk before anyone sees it."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Container, Mapping
from dataclasses import replace
from typing import Protocol

import shoal
from fedserver.coordinator.known_runs import KnownRuns
from fedserver.coordinator.published import Published
from fedserver.coordinator.recipe import Recipe, may_share, recipe_of
from fedserver.coordinator.withdrawal import Withdrawals
from fedserver.store.content.blob_cache import BlobCache
from fedserver.store.records import RunRecord, RunSpec, Standing
from fedserver.store.releases import STABLE
from fedserver.store.store import Storage
from shoal.core.algorithm import Basis, State, basis_of
from shoal.core.algorithm.training import counted_by
from shoal.core.data.histogram import scale_counted
from shoal.core.engine.round.attendance import Memory
from shoal.core.errors import ConfigError, NotFound, Refused
from shoal.core.exchange.payload import Weights
from shoal.core.exchange.tensors import Manifest, check_manifest, own_of
from shoal.core.identity.joining import check_name
from shoal.core.inference.graph.model import read_graph, reference_of
from shoal.core.types import DeviceId, ModelKey, RunId, Tensors
from shoal.shell import crash

OWNER = "@operator"
"""The device name under which an operator's uploads are stored. No device can have this name."""
LONGEST_PERIOD = 366 * 86400.0
"""The longest time from a run of a series to the next, in seconds."""
LONGEST_SERIES = 58
"""The longest name of a series, in characters: those of its runs have up to six more, as in `daily-99999`."""
MISSED_HEARTBEATS = 3
"""How many heartbeats a device may miss before it counts as absent."""


class Connected(Protocol):
    """The devices with these labels that are connected; polling: those that wait for a task now."""

    def __call__(self, labels: Mapping[str, str], *, polling: bool = False) -> tuple[DeviceId, ...]: ...


class Starting:
    """Starts runs. heartbeat: seconds. may_begin: raises a ShoalError unless such a run may begin now. enter:
    makes a run that is stored one of the server's."""

    def __init__(
        self,
        storage: Storage,
        heartbeat: float,
        runs: KnownRuns,
        published: Published,
        withdrawals: Withdrawals,
        may_begin: Callable[[RunSpec], None],
        connected: Connected,
        enter: Callable[[RunRecord, Recipe, State, BlobCache], Awaitable[None]],
    ) -> None:
        self._storage, self._heartbeat, self._runs = storage, heartbeat, runs
        self._published, self._withdrawals = published, withdrawals
        self._may_begin, self._connected, self._enter = may_begin, connected, enter

    async def prepared(self, spec: RunSpec) -> tuple[RunSpec, Recipe]:
        """What is asked for with what the server knows of it, and how it is done.

        Raises ConfigError for what cannot work.
        """
        self._may_begin(spec)
        self.check(spec)
        if spec.evaluate is not None:
            spec = replace(spec, policy=replace(spec.policy, devices=0))  # all are asked
        if spec.evaluate or spec.base:
            spec = await self._published.of_release(spec)
        return spec, await asyncio.to_thread(recipe_of, spec)

    async def begin(self, spec: RunSpec, recipe: Recipe, initial: Weights | None) -> RunId:
        """In turn: start a run that was prepared."""
        storage = self._storage
        removed = await storage.call(storage.runs.removed)
        run = self._id_of(spec, removed, await storage.call(storage.releases.latest))
        name, given = initial.blob.sha256 if initial else "", spec.name or run
        series = spec.series or (run if spec.every else "")
        spec = replace(spec, name=given, series=series, software=shoal.__version__, initial=name)
        blobs, model = storage.blob_cache(run), None
        record = RunRecord(run, spec, time.time(), Standing.ACTIVE, "", 1, (), "", 0)
        try:
            if spec.graph and not spec.release:
                await self._adopt_graph(run, spec, initial)
            if initial is not None:
                await storage.call(storage.runs.adopt, run, OWNER, initial)
                model = await storage.call(blobs.load, initial)
            state = await self._first_state(spec, recipe, model)
            checkpoint = await storage.call(blobs.store_state, recipe.state, state)
            # The first round waits for the devices that ask for work now; after a restart, for all of these.
            connected, waiting = self._connected(spec.labels), self._connected(spec.labels, polling=True)
            await storage.call(storage.runs.add, replace(record, memory=Memory(connected)), checkpoint)
        except Exception:
            await storage.call(storage.runs.release, run)
            raise
        crash.point("server.run-stored")
        await self._enter(replace(record, memory=Memory(waiting)), recipe, state, blobs)
        return run

    async def _first_state(self, spec: RunSpec, recipe: Recipe, model: Tensors | None) -> State:
        if spec.release:
            return await self._published.going_on(spec, recipe)
        if spec.evaluate is None:
            bases, groups = await self._bases_for(spec, recipe), self._groups_for(recipe)
            scale = self._scale_for(recipe)
            return await asyncio.to_thread(recipe.start, model, bases, groups, scale)
        return await self._published.measured(spec, recipe, model)

    async def _bases_for(self, spec: RunSpec, recipe: Recipe) -> list[Basis]:
        """By what the devices of earlier runs, which this one may share with them, have described their data:
        for each network that of the newest run. None is made with a device that was withdrawn."""
        found: dict[Manifest, Basis] = {}
        gone = await self._withdrawals.blobs(await self._published.withdrawn())
        for run in reversed(self._runs.values()):
            basis = basis_of(run.engine.state)
            suits = basis and basis.suits(recipe.server_half.parameters) and may_share(run.spec, spec)
            if basis and suits and (not gone or basis.names[0] not in gone):
                found.setdefault(basis.network, basis)
        return list(found.values())

    def _groups_for(self, recipe: Recipe) -> dict[DeviceId, ModelKey] | None:
        """The clusters of the earlier run that the parameters name; None where they name none. Raises
        NotFound if there is no such run, Refused if it has no clusters."""
        earlier: str = getattr(recipe.server_half.parameters, "of", "")
        if not earlier:
            return None
        found = dict(self._runs.named(earlier).engine.state.assignments)
        if not found:
            raise Refused(f"run {earlier} has no clusters", "name a run that has trained, or leave out `of`")
        return found

    def _scale_for(self, recipe: Recipe) -> Tensors:
        """The scale of the inputs by the run of statistics that the parameters name; empty where they name
        none. Raises NotFound if there is no such run, Refused if it does not have what a scale needs."""
        name = counted_by(recipe.server_half.parameters)
        if not name:
            return {}
        try:
            counted = self._runs.named(name)
        except NotFound as missing:
            hint = "give scaled, raw, or the name of a finished run of `statistics`"
            raise NotFound(f"inputs={name}: {missing.args[0]}", hint) from None
        return scale_counted(name, counted.engine.state.models)

    async def _adopt_graph(self, run: RunId, spec: RunSpec, initial: Weights | None) -> None:
        """Keep the graph that was uploaded for a run. Raises BadPayload for one that no device would take, or
        whose weights are not the run's."""
        storage, stored = self._storage, reference_of(spec.graph, spec.graph_bytes)
        await storage.call(storage.runs.adopt, run, OWNER, stored)
        tensors = await asyncio.to_thread(storage.blobs.read, stored)
        graph = await asyncio.to_thread(read_graph, tensors["graph"].tobytes())
        if initial is not None:
            check_manifest(own_of(initial.manifest), graph.weights, "the initial model")

    def _id_of(self, spec: RunSpec, removed: set[RunId], channels: Container[str]) -> RunId:
        if spec.name and (spec.name == STABLE or spec.name in channels):
            raise ConfigError(f"{spec.name!r} is the name of a channel", "use another name")
        recovery = self._runs.recovery
        taken = {*self._runs, *recovery.pending, *recovery.unreadable, *removed}
        if spec.name in taken:
            why = "already exists"
            if spec.name in removed:
                why = "was removed; devices may still have results of it"
            hint = "use another name, or leave it out to get one made from the algorithm"
            raise ConfigError(f"a run named {spec.name!r} {why}", hint)
        numbered = (f"{spec.algorithm}-{number}" for number in itertools.count(2))
        names = [spec.name] if spec.name else itertools.chain([spec.algorithm], numbered)
        return next(run for run in names if run not in taken)

    def check(self, spec: RunSpec) -> None:
        """Raises ConfigError for what no server of these settings can do."""
        if spec.name:
            check_name(spec.name, "a run")
        if not 0.0 <= spec.every <= LONGEST_PERIOD or (spec.every and not spec.base):
            raise ConfigError(
                f"no run can follow every {spec.every:g} s"
                if spec.base
                else "nothing says what to go on from",
                "name a channel and a period of up to 366 days: --from stable --every 1d",
            )
        if spec.every and not spec.series and len(spec.name) > LONGEST_SERIES:
            raise ConfigError(
                f"{spec.name!r} is too long for a series: the names of its later runs end with a number",
                f"use a name of up to {LONGEST_SERIES} characters",
            )
        shortest = MISSED_HEARTBEATS * self._heartbeat
        if spec.policy.device_timeout < shortest:
            raise ConfigError(
                f"a device timeout of {spec.policy.device_timeout:g} s is too short: devices call every "
                f"{self._heartbeat:g} s while they work",
                f"use {shortest:g} s or more",
            )
