"""The process of a gateway: one port for devices, and the way to the server that leads."""

import asyncio
import logging
import time
from collections.abc import Callable

import grpc
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health  # type: ignore[attr-defined]

from fedserver.authority.peers import NOTED
from fedserver.rpc.admission.attention import Attention
from fedserver.rpc.admission.auth_interceptor import AuthInterceptor
from fedserver.rpc.admission.connections import Connections
from fedserver.rpc.admission.identity import Shown
from fedserver.rpc.admission.limits import Admission
from fedserver.rpc.admission.messages import Requests
from fedserver.rpc.errors import Errors
from fedserver.rpc.gateway.brain import Brain
from fedserver.rpc.gateway.folder import GatewayFolder, GatewaySettings
from fedserver.rpc.gateway.following import Followed
from fedserver.rpc.gateway.proxy import add_all
from fedserver.rpc.server import DEVICE_SERVICES, OPTIONS, bind
from fedserver.rpc.tls import device_credentials
from fedserver.store.identities.records import DAY
from shoal.core.engine.timeouts import GRACE
from shoal.core.errors import StorageFault
from shoal.core.exchange._pb.fed.v1 import gateway_service_pb2 as pb
from shoal.core.identity.certificates import named_by
from shoal.shell.process import allow_descriptors, stop_signal

log = logging.getLogger("shoal.gateway")

ARRIVALS = 1_000.0
"""Devices that may arrive at a gateway in a second. The server behind it paces those of all gateways."""
AGE = 1_800_000
"""Milliseconds after which a device makes a new connection, as at the server."""


class Gateway:
    """A gateway that listens; see `open`. port: where devices call. tasks: what runs until it is closed."""

    def __init__(self, folder: GatewayFolder, settings: GatewaySettings) -> None:
        self._folder, self._pair = folder, folder.pair()
        self._authorities = folder.authorities()
        named = named_by(self._pair.certificate)
        self.followed = Followed(named.federation, lambda: self.brain.away())
        self.brain = Brain(settings.servers, self._credentials, self._hear)
        self._settings = settings
        self._checks, self._connections = health.HealthServicer(), Connections()
        interceptors = (
            Errors(self._connections, Attention("the devices' port")),
            AuthInterceptor(self.followed),
            Admission(Shown(), ARRIVALS),
            Requests(),
        )
        ageing = (("grpc.max_connection_age_ms", AGE), ("grpc.max_connection_age_grace_ms", AGE // 6))
        self._server = aio.server(interceptors=interceptors, options=(*OPTIONS, *ageing))
        add_all(self._server, self.brain)
        health_pb2_grpc.add_HealthServicer_to_server(self._checks, self._server)
        self.tasks: list[asyncio.Task[None]] = []
        self.port = 0

    @property
    def shown(self) -> tuple[tuple[bytes, bytes], bytes]:
        """What devices are shown, and the roots that sign theirs: see `fedserver.rpc.tls.Shows`."""
        return (self._pair.key_pem, self._pair.pem), self._authorities

    def _credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self._authorities, self._pair.key_pem, self._pair.pem)

    def _hear(self, found: pb.FollowResponse) -> None:
        self.followed.hear(found)
        if found.authorities and found.authorities != self._authorities:
            self._authorities = found.authorities
            try:
                self._folder.learn(found.authorities)
            except StorageFault as error:
                log.error("after a restart, this gateway will not know the authorities of now: %s", error)

    async def open(self) -> None:
        """Take calls of devices, which wait until the server was found. Raises ConfigError."""
        self.port = bind(self._server, self._settings.listen, device_credentials(self))
        self._connections.ports.add(self.port)
        await self._server.start()
        self.tasks = [
            asyncio.create_task(self.brain.run()),
            asyncio.create_task(self._connections.watch()),
            asyncio.create_task(self._report_health()),
            asyncio.create_task(self._warn()),
        ]

    async def _warn(self) -> None:
        """Say every day in the log that the certificate ends soon."""
        ends = self._pair.certificate.not_valid_after_utc.timestamp()
        while True:
            if (left := ends - time.time()) < NOTED:
                log.warning(
                    "the certificate of this gateway ends in %.0f days: fedserver gateway add", left / DAY
                )
            await asyncio.sleep(DAY)

    async def _report_health(self) -> None:
        """Health checks, which need a certificate, learn whether there is a server behind this gateway."""
        serving = None
        while True:
            if (now := self.brain.here.is_set()) != serving:
                serving = now
                status = health_pb2.HealthCheckResponse
                for service in ("", *DEVICE_SERVICES):
                    await self._checks.set(service, status.SERVING if now else status.NOT_SERVING)
            await asyncio.sleep(1.0)

    async def close(self, grace: float = GRACE) -> None:
        """Take no new calls; those under way get `grace` seconds."""
        await self._server.stop(grace)
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def serve(folder: GatewayFolder, settings: GatewaySettings, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. announce: called with the address at which devices call.

    Raises ConfigError, and the error of what cannot go on.
    """
    allow_descriptors()
    stop = stop_signal()
    gateway = Gateway(folder, settings)
    await gateway.open()
    announce(f"{settings.listen.rpartition(':')[0]}:{gateway.port}")
    try:
        await asyncio.wait([stop, *gateway.tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in gateway.tasks:
            if task.done():
                task.result()
    finally:
        log.info("stopping")
        await gateway.close()
