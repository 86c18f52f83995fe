"""The server of the world: the real coordinator behind gRPC's servicers, and its operator."""

import asyncio
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.rpc.admission.authorization import Authorization
from fedserver.rpc.admission.identity import Identify, named, verified
from fedserver.rpc.admission.limits import Admission
from fedserver.rpc.admission.messages import Calls
from fedserver.rpc.blobs import Blobs, add_blobs, blobs_of_device
from fedserver.rpc.device import Devices
from fedserver.rpc.errors import Errors
from fedserver.rpc.operators import Operators
from fedserver.rpc.wire import operator_wire
from shoal.core.errors import ShoalError
from shoal.core.exchange._pb.fed.v1 import operator_service_pb2 as pb
from shoal.core.exchange._pb.fed.v1.device_service_pb2_grpc import add_DeviceServiceServicer_to_server
from shoal.core.types import DeviceId
from tests.histories.invariants import check
from tests.histories.processes import SERVER, Process
from tests.histories.serving import SimServer
from tests.server.toys import Hands, pieces_of

if TYPE_CHECKING:
    from tests.histories.world import World

FOR_NOW = frozenset({"unavailable"})
"""What an operator who looks may get instead of an answer: the server is about to end, by a
signal or since its disk has failed."""
UPLOADING = FOR_NOW | {"server-full", "storage", "bad-payload"}
"""And one who brings the initial weights of a run: the disk is full, or fails; or a power cut has torn the
bytes that were there, which are thrown away and brought again."""


class Server:
    """All of its lives. coordinator: of the one that serves now."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.coordinator: Coordinator | None = None

    def waits_for(self) -> str:
        """What the server itself would say."""
        if self.coordinator is None:
            return "no server runs"
        return "; ".join(run.waiting_for for run in OperatorApi(self.coordinator).runs())

    async def main(self, process: Process) -> None:
        """The life of the server's process, as `fedserver.daemon` has it."""
        world = self._world
        identities, folder = world.identities, world.folders[SERVER]
        authority = identities.prepare(folder) if identities is not None else None
        coordinator = await Coordinator.open(folder, world.plan.settings, world.looked.elsewhere)
        shown = identities.shown if identities is not None else _nothing
        server = SimServer(process, shown, world.observe, world.bug)
        try:
            identify: Identify = named
            authorization: tuple[Authorization, ...] = ()
            if identities is not None and authority is not None:
                peers = await identities.open(coordinator, authority)
                identify, authorization = verified, (Authorization(peers),)
                for device in world.devices():
                    await identities.join(peers, device)
            self.coordinator = coordinator
            recovery = coordinator.recovery
            check(not recovery.unreadable, f"runs cannot be read: {recovery.unreadable}")
            known = {*coordinator.runs, *recovery.pending}
            check(world.invariants.started <= known, "I1: a run that was started is lost")
            add_DeviceServiceServicer_to_server(Devices(coordinator, identify), server)
            add_blobs(Blobs(blobs_of_device(coordinator, identify)), server)
            await server.start(Calls(Errors(), *authorization, Admission(identify)))
            world.network.server = server
            process.on_death.append(self._stop_listening)
            operating = process.spawn(self.operate(OperatorApi(coordinator)))
            operating.add_done_callback(self._operator_ended)
            await coordinator.broken
            operating.cancel()
        finally:
            self._stop_listening()
            coordinator.stop_serving()
            await server.stop(world.plan.settings.grace)
            await coordinator.close()
        raise coordinator.broken.result()

    def _stop_listening(self) -> None:
        self._world.network.server = self.coordinator = None
        if self._world.identities is not None:
            self._world.identities.api = None

    async def operate(self, operator: OperatorApi) -> None:
        """An operator starts the runs, and looks at them now and then."""
        while True:
            with self._allowing(FOR_NOW):
                await self._start(operator)
            with self._allowing(FOR_NOW):
                await self._look(Operators(operator))
            await asyncio.sleep(20.0 if self._world.invariants.started else 1.0)

    @contextmanager
    def _allowing(self, codes: Collection[str]) -> Iterator[None]:
        """What an operator gets instead of an answer may have one of these codes."""
        try:
            yield
        except ShoalError as error:
            self._world.say("operator", "got", str(error))
            if error.code not in codes:
                self._world.bug(f"an operator got {error.code}: {error}")

    async def _start(self, operator: OperatorApi) -> None:
        for spec in self._world.plan.runs:
            if spec.name not in [run.run for run in operator.runs()]:
                with self._allowing(UPLOADING):
                    initial = await self._uploaded(operator)
                    with self._allowing(FOR_NOW):
                        await operator.start_run(spec, initial)
                        self._world.invariants.started.add(spec.name)

    async def _look(self, operators: Operators) -> None:
        """See everything, as it travels. No device, and no machine's clock, is a reason to show nothing."""
        context: Any = None
        listed = await operators.ListRuns(pb.ListRunsRequest(), context)
        for run in map(operator_wire.SUMMARY.from_pb, listed.runs):
            shown = await operators.GetRun(pb.GetRunRequest(run=run.run), context)
            operator_wire.status_from_pb(shown.status)
        operator_wire.SERVER.from_pb(await operators.GetStatus(pb.GetStatusRequest(), context))

    def _operator_ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._world.bug(f"an operator's call ended with {type(error).__name__}: {error}")

    async def _uploaded(self, operator: OperatorApi) -> Any:
        initial = self._world.initial
        if initial is None:
            return None
        hands = Hands(operator)  # type: ignore[arg-type]
        weights = hands.keep(initial)
        held = await operator.uploaded(weights.blob)
        if held < weights.blob.size:
            await operator.upload(weights.blob, held, pieces_of(hands.blobs[weights.blob.sha256][held:]))
        return weights


def _nothing(_: DeviceId) -> Mapping[str, Any]:
    """What a connection in plain text shows."""
    return {}
