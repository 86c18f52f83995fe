"""The listeners: a port where devices call, one where they join, a Unix socket for operators and, if it is
wanted, a port for them."""

import asyncio
import ipaddress
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health  # type: ignore[attr-defined]

from fedserver.addresses import holder_of, host_and_port
from fedserver.authority.authority_api import AuthorityApi
from fedserver.authority.daily_quota import DailyQuota
from fedserver.authority.joining import JoinService
from fedserver.authority.permissions import check_complete
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.coordinator.release_api import ReleaseApi
from fedserver.rpc.admission.attention import Attention
from fedserver.rpc.admission.authorization import Authorization, RecordingServer
from fedserver.rpc.admission.connections import Connections
from fedserver.rpc.admission.identity import named, verified
from fedserver.rpc.admission.limits import Admission
from fedserver.rpc.admission.messages import Calls, Layer
from fedserver.rpc.admission.operator_authorization import OperatorAuthorization
from fedserver.rpc.authorities import Authorities
from fedserver.rpc.blobs import Blobs, add_blobs, blobs_of_device
from fedserver.rpc.channel import ANSWER_BYTES
from fedserver.rpc.device import Devices, Placements
from fedserver.rpc.errors import Errors
from fedserver.rpc.operators import Observers, Operators
from fedserver.rpc.releases import Releases
from fedserver.rpc.tls import Access, credentials, joining_server
from shoal.core.engine.timeouts import CONNECTION
from shoal.core.errors import ConfigError
from shoal.core.exchange._pb.fed.v1.authority_service_pb2_grpc import add_AuthorityServiceServicer_to_server
from shoal.core.exchange._pb.fed.v1.device_service_pb2_grpc import add_DeviceServiceServicer_to_server
from shoal.core.exchange._pb.fed.v1.observer_service_pb2_grpc import add_ObserverServiceServicer_to_server
from shoal.core.exchange._pb.fed.v1.operator_service_pb2_grpc import add_OperatorServiceServicer_to_server
from shoal.core.exchange._pb.fed.v1.placement_service_pb2_grpc import add_PlacementServiceServicer_to_server
from shoal.core.exchange._pb.fed.v1.release_service_pb2_grpc import add_ReleaseServiceServicer_to_server

IN_USE = "it is in use or not this machine's"
OPERATOR_CALLS = 64
"""Calls at a time on the operators' socket. `limits` and `operator_authorization` in
`fedserver.rpc.admission` have those of devices, and of operators on their port."""
LONGEST_PATH = 100
"""Bytes that the name of a Unix socket may have."""

OPTIONS = (
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.max_send_message_length", 4 << 20),
    ("grpc.max_metadata_size", 8 << 10),
    ("grpc.absolute_max_metadata_size", 8 << 10),  # above the one before, gRPC refuses some by chance
    ("grpc.compression_enabled_algorithms_bitset", 1),  # none: a small message cannot become a large one
    ("grpc.max_concurrent_streams", 32),  # of one connection, so of one device
    ("grpc.server_handshake_timeout_ms", int(CONNECTION * 1000)),
    ("grpc.keepalive_time_ms", 120_000),  # devices ask every 60 s themselves; this is for those that do not
    ("grpc.keepalive_timeout_ms", int(CONNECTION * 1000)),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 30_000),  # half of what devices do
    ("grpc.http2.max_ping_strikes", 2),
    ("grpc.max_connection_idle_ms", 15 * 60_000),
    ("grpc.so_reuseport", 0),  # two servers on one port would share its devices
    ("grpc.http2.bdp_probe", 1),  # what may be under way grows with the line, as devices have it
    ("grpc.http2.lookahead_bytes", 1 << 19),  # and this is where it begins
)
LONG_ANSWERS = (("grpc.max_send_message_length", ANSWER_BYTES),)
"""Instead of the one above, where operators call: their lists grow with the fleet."""
DEVICE_SERVICES = ("fed.v1.DeviceService", "fed.v1.BlobService", "fed.v1.PlacementService")


class Listeners:
    """The open ports. address: "HOST:PORT", where devices call; join_address: where they join, or "".
    places: how many more calls, calls that wait for a task, and transfers devices may begin."""

    def __init__(self, connections: Connections, places: Callable[[], Mapping[str, int]]) -> None:
        self.servers: list[aio.Server] = []
        self.checks, self.places = health.HealthServicer(), places
        self.address = self.join_address = ""
        self._watching = asyncio.create_task(connections.watch())

    async def start(self) -> None:
        """Accept calls, and report to health checks that this server serves."""
        for server in self.servers:
            await server.start()
        for service in ("", *DEVICE_SERVICES):
            await self.checks.set(service, health_pb2.HealthCheckResponse.SERVING)

    async def stop_accepting(self) -> None:
        """Report to health checks that this server is about to end."""
        await self.checks.enter_graceful_shutdown()

    async def stop(self, grace: float) -> None:
        """Wait for calls that are under way, at most `grace` seconds."""
        await asyncio.gather(*(server.stop(grace) for server in self.servers))
        self._watching.cancel()


async def listen(
    coordinator: Coordinator,
    address: str,
    socket: Path,
    access: Access | None = None,
    addresses: tuple[str, ...] = (),
    within: Sequence[Layer] = (),
) -> Listeners:
    """Serve devices at `address`, without `access` in plain text and only on loopback; operators at `socket`.

    addresses: where devices may find the leader, here or elsewhere, if there are several servers. within:
    what else is around devices' calls once they are admitted. Raises ConfigError for an address that is not
    available.
    """
    if access is not None:  # from here on, the registry says who may do what
        coordinator.may_train, coordinator.labels_of = access.peers.may_train, access.peers.labels
        coordinator.signatures = coordinator.published.signs = access.peers.authority
        coordinator.attention += [access.peers.notices, coordinator.storage.identities.dead.notices]
        settings = coordinator.settings
        coordinator.quota = DailyQuota(access.peers, settings.clusters, settings.placements)
    ports = _Ports(coordinator, access)
    # Typed as Any: all of a server that generated code asks for.
    devices: Any = RecordingServer(ports.for_devices(address, within))
    here = ports.for_operators_here()
    operators = [here] if access is None else [here, *ports.for_operators_elsewhere(access)]
    if access is not None and not addresses:  # devices that have known others forget them when they hear this
        addresses = (ports.listeners.address,)
    add_DeviceServiceServicer_to_server(Devices(coordinator, ports.identify, addresses), devices)
    add_PlacementServiceServicer_to_server(Placements(coordinator, ports.identify), devices)
    add_blobs(Blobs(blobs_of_device(coordinator, ports.identify)), devices)
    operator_api, listeners = OperatorApi(coordinator), ports.listeners
    for server in operators:
        add_OperatorServiceServicer_to_server(Operators(operator_api), server)
        add_ReleaseServiceServicer_to_server(Releases(ReleaseApi(coordinator)), server)
        add_blobs(Blobs(lambda context: operator_api), server)
    for server in (devices, here):
        health_pb2_grpc.add_HealthServicer_to_server(listeners.checks, server)
    if access is not None:
        observed = Observers(operator_api)
        add_ObserverServiceServicer_to_server(observed, devices)
        authority_api = ports.for_joining(access)
        for server in operators:
            add_AuthorityServiceServicer_to_server(Authorities(authority_api), server)
        check_complete(devices.calls)
    bind_socket(here, socket)
    await listeners.start()
    return listeners


class _Ports:
    """Makes the servers of the ports and binds them; the services are added to them afterwards."""

    def __init__(self, coordinator: Coordinator, access: Access | None) -> None:
        settings = coordinator.settings
        self.identify = named if access is None else verified
        self._coordinator, self._access, self._connections = coordinator, access, Connections()
        self._admission = Admission(self.identify, settings.arrivals, settings.waiting, coordinator.fleet)
        self._options = (*OPTIONS, *_ageing(settings.age))
        self.listeners = Listeners(self._connections, self._admission.places)

    def for_devices(self, address: str, within: Sequence[Layer]) -> aio.Server:
        """The port where devices call. Sets the address of the listeners."""
        authorization = () if self._access is None else (Authorization(self._access.peers),)
        errors = self._errors(self._attention("the devices' port"))
        calls = Calls(errors, *authorization, self._admission, *within)
        server = aio.server(interceptors=(calls,), options=self._options)
        if self._access is None:
            host, port = loopback(address), self._open(server, address)
            self.listeners.address = f"{host}:{port}"
        else:
            port = self._open(server, address, credentials(self._access.peers.authority, asks=True))
            self.listeners.address = self._access.at(port)
        return server

    def for_operators_here(self) -> aio.Server:
        """The server of the Unix socket, which is bound when all else is ready."""
        server = aio.server(
            interceptors=(Calls(Errors(own_disk=True)),),
            options=_with_long_answers(OPTIONS),
            maximum_concurrent_rpcs=OPERATOR_CALLS,
        )
        self.listeners.servers.append(server)
        return server

    def for_operators_elsewhere(self, access: Access) -> list[aio.Server]:
        """The port of operators with certificates, if there is to be one."""
        if not access.operator_listen:
            return []
        errors = self._errors(self._attention("the operators' port"))
        calls = Calls(errors, OperatorAuthorization(access.operators))
        server = aio.server(interceptors=(calls,), options=_with_long_answers(self._options))
        port = self._open(server, access.operator_listen, credentials(access.peers.authority, asks=True))
        access.operators.address = access.at(port)
        return [server]

    def for_joining(self, access: Access) -> AuthorityApi:
        """The port where devices join, and what knows all identities."""
        listeners = self.listeners
        joins = JoinService(access.peers, listeners.address)
        server = joining_server(joins, self._errors(self._attention("the joining port")))
        port = self._open(server, access.join_listen, credentials(access.peers.authority, asks=False))
        listeners.join_address = access.at(port)
        return AuthorityApi(self._coordinator, access.peers, listeners.join_address, access.operators)

    def _open(self, server: aio.Server, address: str, shown: grpc.ServerCredentials | None = None) -> int:
        port = bind(server, address, shown)
        self._connections.ports.add(port)
        self.listeners.servers.append(server)
        return port

    def _attention(self, port: str) -> Attention:
        found = Attention(port)
        self._coordinator.attention.append(found.notices)
        return found

    def _errors(self, attention: Attention) -> Errors:
        """What answers the errors of a port that others reach. attention: counts the refused calls."""
        return Errors(
            self._connections,
            attention,
            count=self._coordinator.meter.refused,
            is_deposed=self._coordinator.storage.is_deposed,
        )


Options = tuple[tuple[str, int], ...]


def _with_long_answers(options: Options) -> Options:
    return tuple({**dict(options), **dict(LONG_ANSWERS)}.items())


def _ageing(age: float) -> tuple[tuple[str, int], ...]:
    """A connection takes no new call after `age` seconds; calls that are open may take a sixth longer.

    So a certificate is checked again, and a transfer that is cut resumes after its last chunk.
    """
    milliseconds = int(age * 1000)
    return (
        ("grpc.max_connection_age_ms", milliseconds),
        ("grpc.max_connection_age_grace_ms", milliseconds // 6),
    )


def loopback(address: str) -> str:
    """Return the host of an address. Raises ConfigError if other machines can reach it."""
    host, _ = host_and_port("listen", address)
    try:
        is_loopback = ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise ConfigError(
            f"{address!r} is not a loopback address, and without certificates no other is served",
            "use --listen 127.0.0.1:PORT, with port 0 for any that is free",
        )
    return host


def bind(server: aio.Server, address: str, shown: grpc.ServerCredentials | None = None) -> int:
    """Bind an address; return the port. shown: to callers; without it, in plain text. Raises ConfigError."""
    try:
        if shown is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, shown)
    except RuntimeError:
        who = holder_of(int(port)) if (port := address.rpartition(":")[2]).isdecimal() else ""
        raise ConfigError(
            f"cannot listen on {address}: {f'{who} does' if who else IN_USE}",
            "use another --listen or --join-listen, or another operator_listen in the settings",
        ) from None


def bind_socket(server: aio.Server, socket: Path) -> None:
    """Create a socket that only this user can open, from the first moment on.

    gRPC does not tell who is at the other end of a Unix socket, so nothing is asked of them here: the mode of
    the socket is what the kernel holds callers to.
    """
    if len(os.fsencode(socket)) > LONGEST_PATH:
        raise ConfigError(
            f"the path of the operators' socket has more than {LONGEST_PATH} bytes: {socket}",
            "use a shorter --state",
        )
    socket.unlink(missing_ok=True)  # left by a server that crashed: we have the lock, so none is running
    with _umask(0o177):
        bind(server, f"unix:{socket}")


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
