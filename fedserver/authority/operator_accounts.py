"""The operators who call over the network: who they are, and what the operator of the server does about them.

As for devices (`fedserver.authority.peers`), the registry on disk is the truth, and what is asked at every
call is its copy in memory. A change is carried out to its end, so that the two never differ.
"""

from contextlib import AbstractContextManager

from fedserver.authority.answers import IssuedOperator
from fedserver.authority.authority import Authority
from fedserver.authority.open_calls import OpenCalls, to_the_end
from fedserver.store.identities.records import Operator
from fedserver.store.store import Storage
from shoal.core.errors import ConfigError, Revoked, Unauthenticated
from shoal.core.identity.certificates import OPERATOR, Named, key_of_request, pin_of
from shoal.core.identity.joining import OperatorRole, check_name

LONGEST_REASON = 500
ANOTHER = "get another one on the server's machine, with: fedserver operator add"


class OperatorAccounts:
    """The operators of a server; see `open`.

    address: where the server listens for them, "HOST:PORT"; "": it does not.
    """

    def __init__(self, storage: Storage, authority: Authority, known: list[Operator]) -> None:
        self.storage, self.authority, self.address = storage, authority, ""
        self._known = {each.name: each for each in known}
        self._calls = OpenCalls()

    @classmethod
    async def open(cls, storage: Storage, authority: Authority) -> "OperatorAccounts":
        return cls(storage, authority, await storage.call(storage.identities.operators.all))

    # -- at every call --------------------------------------------------------------------------------------

    def admit(self, peer: Named) -> Operator:
        """Find the operator behind a certificate that TLS has verified. Raises Unauthenticated or Revoked."""
        known = self._known.get(peer.name)
        if peer.federation != self.authority.federation or peer.kind != OPERATOR or known is None:
            raise Unauthenticated(
                f"no operator {peer.name} of federation {peer.federation} is known here", ANOTHER
            )
        if known.spki != peer.spki:
            raise Unauthenticated(f"operator {peer.name} has another key than this one", ANOTHER)
        self._check_standing(peer.name)
        return known

    def calling(self, name: str) -> AbstractContextManager[None]:
        """Around a call of an operator; raises Revoked in it as soon as the key holds no more."""
        return self._calls.calling(name, lambda: self._end(name))

    def _check_standing(self, name: str) -> None:
        if self._known[name].revoked:
            raise Revoked(f"operator {name} was revoked", "ask who runs the server")

    def _end(self, name: str) -> None:
        self._check_standing(name)
        raise Unauthenticated(f"operator {name} has another key", "use that one")

    # -- changes --------------------------------------------------------------------------------------------

    def known(self) -> list[Operator]:
        """All operators, by name."""
        return [self._known[name] for name in sorted(self._known)]

    @to_the_end
    async def add(self, name: str, role: OperatorRole, csr: bytes) -> IssuedOperator:
        """Enter an operator's key; one that this name had holds no more, and its open calls are cut.

        csr: PKCS #10, DER. Raises ConfigError if the server does not listen for operators, or for a name that
        is not possible, and BadPayload.
        """
        if not self.address:
            raise ConfigError(
                "this server does not listen for operators",
                "write `operator_listen: 0.0.0.0:50053` into fedserver.yaml and restart the server",
            )
        check_name(name, "an operator")
        key = key_of_request(csr)
        added = await self.storage.call(self.storage.identities.operators.add, name, role, pin_of(key).hex())
        self._known[name] = added
        self._calls.cut(name)
        authority = self.authority
        return IssuedOperator(added, authority.issue(OPERATOR, name, key), authority.pem, self.address)

    @to_the_end
    async def revoke(self, name: str, reason: str) -> tuple[Operator, int]:
        """Revoke an operator; also return how many open calls were cut. Raises NotFound."""
        self._known[name] = await self.storage.call(
            self.storage.identities.operators.revoke, name, reason[:LONGEST_REASON]
        )
        return self._known[name], self._calls.cut(name)
