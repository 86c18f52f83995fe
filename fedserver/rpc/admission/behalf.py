"""Who calls, as the services see it.

Of a call that a gateway brings, it is the device whose certificate the gateway has seen in TLS: to what comes
after the authorization interceptor, such a call looks like one over the device's connection.
"""

from typing import Any, NoReturn

import grpc
from grpc import aio

from fedserver.rpc.admission.identity import TLS, Context

ENTRY = "shoal-for-bin"
"""The metadata of a call that a gateway passes on as it is: the device's certificate, PEM. It is read only if
the TLS peer is a gateway."""
MAX_CERTIFICATE = 4096
"""Bytes. A device's certificate, which the server has made, has about 900."""


def named_in(context: Context) -> bytes:
    """The certificate of the device for which a gateway calls, PEM; b"" if it calls for itself."""
    found = [value for key, value in context.invocation_metadata() or () if key == ENTRY]
    return found[0] if len(found) == 1 and isinstance(found[0], bytes) else b""


def shown(certificate: bytes) -> dict[str, list[bytes]]:
    """What gRPC says about a connection on which this certificate (PEM) was shown."""
    return {"x509_pem_cert": [certificate], "ssl_tls_version": TLS}


class Admitted:
    """The context of a call whose caller is known: gRPC's own, except for who calls.

    It is the device whose certificate a gateway has passed on, or the TLS peer itself: a call asks several
    times who calls, and each question to gRPC costs as much as a check of the registry.
    """

    def __init__(self, context: Context, certificate: bytes) -> None:
        self._context, self._shown = context, shown(certificate)

    def auth_context(self) -> dict[str, list[bytes]]:
        return self._shown

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class Carried:
    """The context of a call that came in a batch. address: the device's, as gRPC writes it.

    status, details, trailing: set if the call fails.
    """

    def __init__(self, certificate: bytes, address: str, session: str) -> None:
        self._shown, self._address = shown(certificate), address
        self._metadata = (("shoal-session", session),) if session else ()
        self.status, self.details = grpc.StatusCode.OK, ""
        self.trailing: dict[str, bytes] = {}

    def auth_context(self) -> dict[str, list[bytes]]:
        return self._shown

    def peer(self) -> str:
        return self._address

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata

    def set_trailing_metadata(self, trailing: tuple[tuple[str, bytes], ...]) -> None:
        self.trailing = dict(trailing)

    async def abort(self, status: grpc.StatusCode, details: str = "") -> NoReturn:
        self.status, self.details = status, details
        raise aio.AbortError
