"""The server of the world: the real coordinator behind gRPC's servicers, and its operator."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.rpc.admission.auth_interceptor import AuthInterceptor
from fedserver.rpc.admission.identity import Callers, Unverified, Verified
from fedserver.rpc.admission.limits import Admission
from fedserver.rpc.admission.messages import Requests
from fedserver.rpc.blobs import Blobs, add_blobs, blobs_of_device
from fedserver.rpc.device import Devices
from fedserver.rpc.errors import Errors
from shoal.core.errors import ShoalError
from shoal.core.exchange._pb.fed.v1.device_service_pb2_grpc import add_DeviceServiceServicer_to_server
from shoal.core.types import DeviceId
from tests.histories.invariants import check
from tests.histories.processes import SERVER, Process
from tests.histories.serving import SimServer
from tests.server.toys import Hands, pieces_of

if TYPE_CHECKING:
    from tests.histories.world import World


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
            callers: Callers = Unverified()
            authorization: tuple[AuthInterceptor, ...] = ()
            if identities is not None and authority is not None:
                peers = await identities.open(coordinator, authority)
                callers, authorization = Verified(peers, 1), (AuthInterceptor(peers),)
                for device in world.devices():
                    await identities.join(peers, device)
            self.coordinator = coordinator
            recovery = coordinator.recovery
            check(not recovery.unreadable, f"runs cannot be read: {recovery.unreadable}")
            known = {*coordinator.runs, *recovery.pending}
            check(world.invariants.started <= known, "I1: a run that was started is lost")
            add_DeviceServiceServicer_to_server(Devices(coordinator, callers), server)
            add_blobs(Blobs(blobs_of_device(coordinator, callers)), server)
            await server.start(Errors(), *authorization, Admission(callers), Requests())
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
        world = self._world
        while True:
            try:
                for spec in world.plan.runs:
                    if spec.name not in [run.run for run in operator.runs()]:
                        await operator.start_run(spec, await self._uploaded(operator))
                        world.invariants.started.add(spec.name)
                for run in operator.runs():
                    await operator.show(run.run)
                await operator.status()
            except ShoalError as error:
                world.say("operator", "got", str(error))
            await asyncio.sleep(20.0 if world.invariants.started else 1.0)

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
