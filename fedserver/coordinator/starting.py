"""How a run is started, for an operator or a series: it is checked, and on disk before anyone sees it."""

import asyncio
import itertools
import re
import time
from collections.abc import Container
from dataclasses import replace
from typing import TYPE_CHECKING

import shoal
from fedserver.coordinator.recipe import Recipe, may_share, recipe_of
from fedserver.coordinator.visits.visitor import unlabeled
from fedserver.store.records import RunRecord, RunSpec, Standing
from fedserver.store.releases import STABLE
from shoal.core.algorithm import Basis, State, basis_of
from shoal.core.algorithm.training import counted_by
from shoal.core.data.histogram import scale_counted
from shoal.core.data.scale import RESERVED
from shoal.core.engine.round.attendance import Memory
from shoal.core.errors import ConfigError, NotFound, Refused
from shoal.core.exchange.payload import Weights
from shoal.core.exchange.tensors import Manifest, check_manifest
from shoal.core.inference.graph.model import read_graph, reference_of
from shoal.core.types import DeviceId, ModelKey, RunId, Tensors
from shoal.shell import crash

if TYPE_CHECKING:
    from fedserver.coordinator.coordinator import Coordinator

OWNER = "@operator"
"""The device name under which an operator's uploads are stored. No device can have this name."""
LONGEST_PERIOD = 366 * 86400.0
"""The longest time from a run of a series to the next, in seconds."""
MISSED_HEARTBEATS = 3
"""How many heartbeats a device may miss before it counts as absent."""


class Starting:
    """Starts the runs of a coordinator."""

    def __init__(self, coordinator: "Coordinator") -> None:
        self._coordinator, self._storage = coordinator, coordinator.storage

    async def prepared(self, spec: RunSpec) -> tuple[RunSpec, Recipe]:
        """What is asked for with what the server knows of it, and how it is done.

        Raises ConfigError for what cannot work.
        """
        self._coordinator.check_serving()
        self._coordinator.check_deciding()
        self.check(spec)
        if spec.evaluate is not None:
            spec = replace(spec, policy=replace(spec.policy, devices=0))  # all are asked
        if spec.evaluate or spec.base:
            spec = await self._coordinator.published.of_release(spec)
        return spec, await asyncio.to_thread(recipe_of, spec)

    async def begin(self, spec: RunSpec, recipe: Recipe, initial: Weights | None) -> RunId:
        """In turn: start a run that was prepared."""
        storage = self._storage
        removed = await storage.call(storage.runs.removed)
        run = self._id_of(spec, removed, await storage.call(storage.releases.moves))
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
            connected = self._coordinator.connected(spec.labels)
            waiting = self._coordinator.connected(spec.labels, polling=True)
            await storage.call(storage.runs.add, replace(record, memory=Memory(connected)), checkpoint)
        except Exception:
            await storage.call(storage.runs.release, run)
            raise
        crash.point("server.run-stored")
        await self._coordinator.add(replace(record, memory=Memory(waiting)), recipe, state, blobs)
        return run

    async def _first_state(self, spec: RunSpec, recipe: Recipe, model: Tensors | None) -> State:
        if spec.release:
            return await self._coordinator.published.going_on(spec, recipe)
        if spec.evaluate is None:
            bases, groups = await self._bases_for(spec, recipe), self._groups_for(recipe)
            scale = self._scale_for(recipe)
            return await asyncio.to_thread(recipe.start, model, bases, groups, scale)
        return await self._coordinator.published.measured(spec, recipe, model)

    async def _bases_for(self, spec: RunSpec, recipe: Recipe) -> list[Basis]:
        """By what the devices of earlier runs, which this one may share with them, have described their data:
        for each network that of the newest run. None is made with a device that was withdrawn."""
        found: dict[Manifest, Basis] = {}
        coordinator = self._coordinator
        gone = await coordinator.withdrawals.blobs(await coordinator.published.withdrawn())
        for run in reversed(coordinator.runs.values()):
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
        found = dict(self._coordinator.runs.named(earlier).engine.state.assignments)
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
            counted = self._coordinator.runs.named(name)
        except NotFound as missing:
            hint = "give scaled, raw, or the name of a finished run of `statistics`"
            raise NotFound(f"inputs={name}: {missing.args[0]}", hint) from None
        return scale_counted(name, counted.engine.state.models)

    async def _adopt_graph(self, run: RunId, spec: RunSpec, initial: Weights | None) -> None:
        """Keep the graph that was uploaded for a run. Raises BadPayload for one that no device would take, or
        whose weights are not the run's."""
        storage, stored = self._coordinator.storage, reference_of(spec.graph, spec.graph_bytes)
        await storage.call(storage.runs.adopt, run, OWNER, stored)
        tensors = await asyncio.to_thread(storage.blobs.read, stored)
        graph = await asyncio.to_thread(read_graph, tensors["graph"].tobytes())
        if initial is not None:
            own = tuple(spec for spec in initial.manifest if spec.name not in RESERVED)
            check_manifest(own, graph.weights, "the initial model")

    def _id_of(self, spec: RunSpec, removed: set[RunId], channels: Container[str]) -> RunId:
        recovery = self._coordinator.recovery
        if spec.name and (spec.name == STABLE or spec.name in channels):
            raise ConfigError(f"{spec.name!r} is the name of a channel", "use another name")
        taken = {*self._coordinator.runs, *recovery.pending, *recovery.unreadable, *removed}
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
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}|", spec.name):
            raise ConfigError(
                f"{spec.name!r} is not a valid run name",
                "use 1 to 64 letters, digits, dots, dashes and underscores",
            )
        if spec.labels and self._coordinator.labels_of is unlabeled:
            raise ConfigError("devices have labels only on a server with certificates", "leave them out")
        if not 0.0 <= spec.every <= LONGEST_PERIOD or (spec.every and not spec.base):
            raise ConfigError(
                f"no run can follow every {spec.every:g} s"
                if spec.base
                else "nothing says what to go on from",
                "name a channel and a period of up to 366 days: --from stable --every 1d",
            )
        shortest = MISSED_HEARTBEATS * self._coordinator.settings.heartbeat
        if spec.policy.device_timeout < shortest:
            raise ConfigError(
                f"a device timeout of {spec.policy.device_timeout:g} s is too short: devices call every "
                f"{self._coordinator.settings.heartbeat:g} s while they work",
                f"use {shortest:g} s or more",
            )
