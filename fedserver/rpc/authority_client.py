"""The operators' side of AuthorityService: what `fedserver token`, `device` and `authority` call."""

from pathlib import Path
from typing import Any

import grpc

from fedserver.authority.authority_api import Ended, Known, Root
from fedserver.rpc import authority_wire as convert
from fedserver.rpc.client import OperatorClient
from fedserver.store.identities.records import Terms, Token
from shoal.core.engine.timeouts import ANSWER
from shoal.core.errors import ConfigError, ShoalError
from shoal.core.exchange._pb.fed.v1 import authority_service_pb2 as pb
from shoal.core.exchange._pb.fed.v1.authority_service_pb2_grpc import AuthorityServiceStub
from shoal.core.types import DeviceId


class AuthorityClient(OperatorClient):
    """All that an operator may ask. Raises ShoalErrors only; ConfigError where there are no certificates."""

    def __init__(self, state: Path) -> None:
        super().__init__(state)
        self._stub = AuthorityServiceStub(self._channel)

    def create_token(self, terms: Terms) -> tuple[Token, str]:
        """The token, and its join string."""
        with self._errors():
            found = self._stub.CreateToken(convert.terms_to_pb(terms), timeout=ANSWER)
        return convert.token_from_pb(found.token), found.join

    def tokens(self) -> list[Token]:
        with self._errors():
            found = self._stub.ListTokens(pb.ListTokensRequest(), timeout=ANSWER)
        return list(map(convert.token_from_pb, found.tokens))

    def revoke_token(self, token: str) -> Token:
        with self._errors():
            found = self._stub.RevokeToken(pb.RevokeTokenRequest(token=token), timeout=ANSWER)
        return convert.token_from_pb(found.token)

    def devices(self) -> list[Known]:
        with self._errors():
            found = self._stub.ListDevices(pb.ListDevicesRequest(), timeout=ANSWER)
        return list(map(convert.device_from_pb, found.devices))

    def approve(self, device: DeviceId) -> Known:
        with self._errors():
            found = self._stub.ApproveDevice(pb.ApproveDeviceRequest(device=device), timeout=ANSWER)
        return convert.device_from_pb(found.device)

    def revoke(self, device: DeviceId, reason: str = "") -> Ended:
        request = pb.RevokeDeviceRequest(device=device, reason=reason)
        with self._errors():
            return convert.ended_from_pb(self._stub.RevokeDevice(request, timeout=ANSWER))

    def rename(self, device: DeviceId, display: str) -> Known:
        request = pb.RenameDeviceRequest(device=device, display=display)
        with self._errors():
            return convert.device_from_pb(self._stub.RenameDevice(request, timeout=ANSWER).device)

    def roots(self) -> list[Root]:
        with self._errors():
            found = self._stub.ListAuthorities(pb.ListAuthoritiesRequest(), timeout=ANSWER)
        return list(map(convert.root_from_pb, found.authorities))

    def add_root(self) -> Root:
        with self._errors():
            found = self._stub.AddAuthority(pb.AddAuthorityRequest(), timeout=ANSWER)
        return convert.root_from_pb(found.authority)

    def use_root(self, name: str, force: bool = False) -> Root:
        request = pb.UseAuthorityRequest(authority=name, force=force)
        with self._errors():
            return convert.root_from_pb(self._stub.UseAuthority(request, timeout=ANSWER).authority)

    def drop_root(self, name: str, force: bool = False) -> None:
        with self._errors():
            self._stub.DropAuthority(pb.DropAuthorityRequest(authority=name, force=force), timeout=ANSWER)

    def _error_of(self, error: Any, timed_out: tuple[str, str]) -> ShoalError:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return ConfigError(
                f"the server of {self._state} runs in plain text, without certificates",
                "stop it, make them with fedserver init, start it without --insecure-loopback",
            )
        return super()._error_of(error, timed_out)
