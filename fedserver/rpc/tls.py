"""TLS: the certificates that the ports show and ask for, and the server of the joining port."""

from dataclasses import dataclass

import grpc
from grpc import aio

from fedserver.authority.authority import Authority
from fedserver.authority.joining import JoinService
from fedserver.authority.operator_accounts import OperatorAccounts
from fedserver.authority.peers import Peers
from fedserver.rpc.admission.messages import Calls
from fedserver.rpc.device import Enrollments
from fedserver.rpc.errors import Errors
from shoal.core.engine import timeouts
from shoal.core.engine.timeouts import CONNECTION
from shoal.core.exchange._pb.fed.v1.enrollment_service_pb2_grpc import add_EnrollmentServiceServicer_to_server

SILENT = 256
"""How many calls at the joining port may wait for their message."""
MESSAGE = 64 << 10

OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE),
    ("grpc.max_send_message_length", MESSAGE),
    ("grpc.max_metadata_size", 8 << 10),
    ("grpc.absolute_max_metadata_size", 8 << 10),
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.server_handshake_timeout_ms", int(CONNECTION * 1000)),
    ("grpc.max_concurrent_streams", 8),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", int(CONNECTION * 1000)),
    ("grpc.http2.min_ping_interval_without_data_ms", 30_000),
    ("grpc.http2.max_ping_strikes", 2),
    ("grpc.max_connection_idle_ms", 20_000),
    ("grpc.max_connection_age_ms", 60_000),
    ("grpc.max_connection_age_grace_ms", 10_000),
    ("grpc.so_reuseport", 0),
)
"""Options of the joining port, which anyone can reach. No caller has a reason to stay connected to it."""


@dataclass(frozen=True)
class Access:
    """What a server with certificates needs. join_listen: where EnrollmentService listens, "HOST:PORT".

    host: the first name or address of the server: what devices are given to call. operators:
    those who call over the network. operator_listen: where they do, "HOST:PORT"; "": nowhere.
    """

    peers: Peers
    join_listen: str
    host: str
    operators: OperatorAccounts
    operator_listen: str = ""

    def at(self, port: int) -> str:
        """The address of a port of this server, for devices."""
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"


def credentials(authority: Authority, asks: bool) -> grpc.ServerCredentials:
    """What a port shows; each new connection uses the authority as it is then. asks: whether every caller has
    to show a certificate, which those that join have not yet."""
    source = CertificateSource(authority)
    return grpc.dynamic_ssl_server_credentials(
        source.now(),
        source.changed,  # type: ignore[arg-type] # the stubs do not know that None says: no change
        require_client_authentication=asks,
    )


class CertificateSource:
    """Gives gRPC the server's certificate, which is also what has issued those of callers.

    gRPC asks at each connection whether they have changed. An answer replaces what other threads may be about
    to use for a handshake, and the process then ends with SIGSEGV. So an answer is given only for a change.
    """

    def __init__(self, authority: Authority) -> None:
        self._authority = authority
        self._given = authority.shown

    def now(self) -> grpc.ServerCertificateConfiguration:
        _, trusted = self._given
        return grpc.ssl_server_certificate_configuration([self._given], root_certificates=trusted)

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """The present configuration, or None if it is the one given last. gRPC's own threads call this."""
        if (found := self._authority.shown) == self._given:
            return None
        self._given = found
        return self.now()


def joining_server(joins: JoinService, errors: Errors) -> aio.Server:
    """A server that has only EnrollmentService."""
    calls = Calls(errors, within=timeouts.FIRST_MESSAGE, most=SILENT)
    server = aio.server(interceptors=(calls,), options=OPTIONS)
    add_EnrollmentServiceServicer_to_server(Enrollments(joins), server)
    return server
