"""The operators who call over the network: who they are, and what the operator of the server does about them.

As for devices (`fedserver.authority.peers`), the registry on disk is the truth, and what is asked at every
call is its copy in memory. A change is carried out to its end, so that the two never differ.
"""

import time
from contextlib import AbstractContextManager

from fedserver.authority.answers import IssuedOperator
from fedserver.authority.open_calls import OpenCalls, to_the_end
from fedserver.authority.rate_limit import RateLimit
from fedserver.authority.roots import Authority
from fedserver.store.identities.records import DAY, Issued, Operator
from fedserver.store.store import Storage
from shoal.core.errors import ConfigError, Revoked, TooOften, Unauthenticated
from shoal.core.identity.certificates import certificate, key_in, key_of_request
from shoal.core.identity.joining import NAME, OperatorRole
from shoal.core.identity.operators import NamedOperator, operator_named_by

SHORTEST, USUAL, LONGEST = 3600.0, 90 * DAY, 400 * DAY
"""Seconds for which an operator's certificate may be valid, and for which it is by default."""
LONGEST_REASON = 500
RENEWALS = 5
"""How often a certificate of one operator can be renewed in a minute."""
RENEWED, NOTED = 1 / 2, 1 / 6
"""The parts of its lifetime that a certificate has left at most when it can be renewed, and when operators
hear of it. Programs renew it when a third is left."""
ANOTHER = "get another one on the server's machine, with: fedserver operator add"


class OperatorAccounts:
    """The operators of a server; see `open`.

    address: where the server listens for them, "HOST:PORT"; "": it does not.
    """

    def __init__(self, storage: Storage, authority: Authority, known: list[Operator]) -> None:
        self.storage, self.authority, self.address = storage, authority, ""
        self._known = {each.name: each for each in known}
        self._calls, self._renewals = OpenCalls(), RateLimit(RENEWALS)

    @classmethod
    async def open(cls, storage: Storage, authority: Authority) -> "OperatorAccounts":
        return cls(storage, authority, await storage.call(storage.identities.operators.all))

    # -- at every call --------------------------------------------------------------------------------------

    def admit(self, peer: NamedOperator) -> Operator:
        """Find the operator behind a certificate that TLS has verified. Raises Unauthenticated or Revoked."""
        known = self._known.get(peer.name)
        if peer.federation != self.authority.federation or known is None:
            raise Unauthenticated(
                f"no operator {peer.name} of federation {peer.federation} is known here", ANOTHER
            )
        # Renewed certificates have the key of the former ones, which so are as good as these until they end.
        if known.spki != peer.spki or known.root not in self.authority.roots:
            raise Unauthenticated(
                f"this certificate of operator {peer.name} is not valid: a newer one has replaced it, or its "
                "authority is not trusted any more",
                ANOTHER,
            )
        if time.time() >= known.expires:
            raise Unauthenticated(f"the certificate of operator {peer.name} has expired", ANOTHER)
        self._check_standing(peer.name)
        return known

    def calling(self, name: str) -> AbstractContextManager[None]:
        """Around a call of an operator; raises Revoked in it as soon as the certificate is void."""
        return self._calls.calling(name, lambda: self._end(name))

    def _check_standing(self, name: str) -> None:
        if self._known[name].revoked:
            raise Revoked(f"operator {name} was revoked", "ask who runs the server")

    def _end(self, name: str) -> None:
        self._check_standing(name)
        raise Unauthenticated(f"operator {name} has a newer certificate", "use that one")

    # -- changes --------------------------------------------------------------------------------------------

    def known(self) -> list[Operator]:
        """All operators, by name."""
        return [self._known[name] for name in sorted(self._known)]

    def current(self) -> list[Operator]:
        """Those whose certificates are valid."""
        return [each for each in self.known() if not each.revoked and each.expires > time.time()]

    @to_the_end
    async def add(self, name: str, role: OperatorRole, csr: bytes, ttl: float) -> IssuedOperator:
        """Give an operator a certificate; a former one of this name is void, and its open calls are cut.

        csr: PKCS #10, DER. Raises ConfigError if the server does not listen for operators, or for a name or a
        lifetime that is not possible, and BadPayload.
        """
        if not self.address:
            raise ConfigError(
                "this server does not listen for operators",
                "write `operator_listen: 0.0.0.0:50053` into fedserver.yaml and restart the server",
            )
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"{name[:64]!r} is not a name for an operator",
                "use 1 to 64 letters, digits, dots, dashes and underscores, a letter or digit first",
            )
        if not SHORTEST <= ttl <= LONGEST:
            raise ConfigError(
                f"a certificate cannot be valid for {ttl:g} s",
                f"give {SHORTEST / 3600:g} hour to {LONGEST / DAY:g} days",
            )
        issued: Issued = self.authority.issue_operator(name, key_of_request(csr), ttl)
        bundle, authorities = tuple(self.authority.roots), self.authority.bundle
        added = await self.storage.call(self.storage.identities.operators.add, name, role, issued, bundle)
        self._known[name] = added
        self._calls.cut(name)
        return IssuedOperator(added, issued.pem, authorities, self.address)

    @to_the_end
    async def renew(self, shown: bytes) -> IssuedOperator:
        """Give an operator who calls another certificate with the key and the lifetime of the present one.

        shown: the certificate of the caller, who was admitted, PEM. Raises TooOften until half of its
        lifetime is over. A newer one does not count: the answer with it may have been lost.
        """
        found = certificate(shown)
        name = operator_named_by(found).name
        known = self._known[name]
        ttl = known.expires - known.issued
        if found.not_valid_after_utc.timestamp() - time.time() > RENEWED * ttl:
            raise TooOften(
                f"the certificate of operator {name} is too new to be renewed",
                "it can be when half of its lifetime is over",
            )
        if not self._renewals.allow(name):
            raise TooOften(f"operator {name} renews its certificate too often", "try again in a minute")
        issued: Issued = self.authority.issue_operator(name, key_in(found), ttl)
        bundle, authorities = tuple(self.authority.roots), self.authority.bundle
        renewed = await self.storage.call(self.storage.identities.operators.renew, name, issued, bundle)
        self._known[name] = renewed
        return IssuedOperator(renewed, issued.pem, authorities, self.address)

    def notices(self) -> tuple[str, ...]:
        """A sentence for each certificate that is about to end, although each use renews it in time."""
        return tuple(
            f"the certificate of operator {each.name} ends on {_date(each.expires)}; each use of it renews"
            " it, and so does: fedserver operator renew --connect FOLDER"
            for each in self.current()
            if _left(each) < NOTED
        )

    @to_the_end
    async def revoke(self, name: str, reason: str) -> tuple[Operator, int]:
        """Revoke an operator; also return how many open calls were cut. Raises NotFound."""
        self._known[name] = await self.storage.call(
            self.storage.identities.operators.revoke, name, reason[:LONGEST_REASON]
        )
        return self._known[name], self._calls.cut(name)


def _left(known: Operator) -> float:
    """The part of a certificate's lifetime that is left."""
    return (known.expires - time.time()) / max(1.0, known.expires - known.issued)


def _date(clock: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(clock))
