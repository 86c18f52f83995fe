"""A server that stands by: another one leads, so it answers health checks and refuses every other call.

Its ports are those that it has as the leader. Devices show their certificates there, and go on to the next
address that they know when they hear that this is not the leader.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health  # type: ignore[attr-defined]

from fedserver.authority.authority import Authority
from fedserver.rpc.admission.connections import Connections
from fedserver.rpc.errors import RETRY_WINDOW, refuse
from fedserver.rpc.server import DEVICE_SERVICES, OPERATOR_CALLS, OPTIONS, bind, bind_socket, loopback
from fedserver.rpc.tls import OPTIONS as JOINING_OPTIONS
from fedserver.rpc.tls import credentials
from shoal.core.errors import NotLeader


class Standby:
    """The open ports of a server that stands by. port: where devices call; join_port: 0 in plain text."""

    def __init__(self, servers: list[aio.Server], port: int, join_port: int) -> None:
        self._servers, self.port, self.join_port = servers, port, join_port
        connections = Connections()  # or strangers could take all descriptors, and it could not take over
        connections.ports.update({port, join_port})
        self._watching = asyncio.create_task(connections.watch())

    async def stop(self) -> None:
        self._watching.cancel()
        for server in self._servers:
            await server.stop(None)


async def stand_by(listen: str, join_listen: str, socket: Path, authority: Authority | None) -> Standby:
    """Refuse devices at `listen` and `join_listen`, and operators at `socket`, until `Standby.stop`.

    authority: None for plain text, on a loopback address only. Raises ConfigError for an address that is not
    available.
    """
    checks = health.HealthServicer()
    devices, operators = _server(OPTIONS), _server(OPTIONS, OPERATOR_CALLS)
    devices.add_generic_rpc_handlers((_checking(checks),))
    health_pb2_grpc.add_HealthServicer_to_server(checks, operators)
    servers, join_port = [devices, operators], 0
    if authority is None:
        loopback(listen)
        port = bind(devices, listen)
    else:
        port = bind(devices, listen, credentials(authority, asks=True))
        joining = _server(JOINING_OPTIONS)
        join_port = bind(joining, join_listen, credentials(authority, asks=False))
        servers.append(joining)
    bind_socket(operators, socket)
    for server in servers:
        server.add_generic_rpc_handlers((Refusing(),))
        await server.start()
    await checks.set("", health_pb2.HealthCheckResponse.SERVING)
    for service in DEVICE_SERVICES:
        await checks.set(service, health_pb2.HealthCheckResponse.NOT_SERVING)
    return Standby(servers, port, join_port)


def _server(options: tuple[tuple[str, int], ...], most: int | None = None) -> aio.Server:
    """most: calls at a time. For devices there is no limit: gRPC refuses a call above it in words of its own,
    by which a device does not hear that it has to call the other server."""
    return aio.server(options=options, maximum_concurrent_rpcs=most)


def _checking(checks: health.HealthServicer) -> Any:
    """Health checks as devices may make them: calls that last are for the socket only."""
    check = grpc.unary_unary_rpc_method_handler(
        checks.Check,
        health_pb2.HealthCheckRequest.FromString,
        health_pb2.HealthCheckResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": check})


class Refusing(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Answers every method, before its request is read."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return grpc.stream_stream_rpc_method_handler(_refuse)


async def _refuse(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    await refuse(
        context,
        NotLeader("this server stands by, and another one leads", "call the other server", RETRY_WINDOW),
    )
    yield b""  # never: the call is over
