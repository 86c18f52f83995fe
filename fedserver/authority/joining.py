"""Challenge, join, rejoin, renew: what EnrollmentService and IdentityService do, without a network.

A join string, or the key of a certificate, that was refused five times in a minute has to wait. So does an
address, but only with join strings and certificates that the server does not know: a stranger behind the same
address as a fleet does not keep the fleet from joining. Success costs nothing. Challenges, which anyone may
request, are paced for each address and for all: no one can request enough of them to make those of other
devices invalid. All this is checked before anything is verified, which takes a hundred times longer.
"""

import secrets
import time
from collections import OrderedDict

from fedserver.authority.peers import Peers
from fedserver.authority.rate_limit import PaceByKey, RateLimit
from fedserver.store.identities.admission import Admission
from shoal.core.engine.pacing import Pace
from shoal.core.errors import Busy, TooOften, Unavailable
from shoal.core.identity.certificates import Named, certificate, key_of_request, named_by
from shoal.core.identity.joining import NONCE, Challenge, IssuedIdentity, Joining, Pending, Rejoining

FAILURES = 5
"""Refusals per minute for one join string or key, and for all unknown ones from one address."""
CHALLENGES, AT_ONCE = 20.0, 500.0
"""Challenges per second, and at once, for one address: a fleet may be behind it."""
ALL_CHALLENGES, ALL_AT_ONCE, FURTHEST = 100.0, 1000.0, 45.0
"""The same for all addresses, and the longest wait in seconds. So at most 7,000 challenges
are open: less than `MOST_NONCES`."""
RETRY = 10.0
"""Seconds after which a device that waits for approval asks again."""


NONCE_LIFE = 60.0
"""Seconds for which a nonce is valid."""
MOST_NONCES = 8192
"""How many are open at a time; one more makes the oldest invalid. At most 512 KiB of memory."""


class Nonces:
    """The nonces that callers must answer to, valid once; only in memory: a restart voids them."""

    def __init__(self) -> None:
        self._ends: OrderedDict[bytes, float] = OrderedDict()

    def make(self) -> bytes:
        nonce = secrets.token_bytes(NONCE)
        self._ends[nonce] = time.monotonic() + NONCE_LIFE
        while len(self._ends) > MOST_NONCES:
            self._ends.popitem(last=False)
        return nonce

    def take(self, nonce: bytes) -> bool:
        """Return whether a nonce is valid, and make it invalid."""
        return time.monotonic() < self._ends.pop(nonce, 0.0)


class JoinService:
    """Gives devices their certificates. address: where devices call, as their identity will say."""

    def __init__(self, peers: Peers, address: str) -> None:
        self._peers, self._authority, self._address = peers, peers.authority, address
        self._storage = peers.storage
        self._nonces, self._failures = Nonces(), RateLimit(FAILURES)
        self._asked = PaceByKey(lambda: Pace(CHALLENGES, AT_ONCE, FURTHEST))
        self._all_asked = Pace(ALL_CHALLENGES, ALL_AT_ONCE, FURTHEST)

    async def challenge(self, caller: str) -> Challenge:
        """Create a challenge. caller: the network address, here and below. Raises TooOften or Busy."""
        if delay := self._asked.delay(caller):
            problem = "this address requests too many challenges"
            raise TooOften(problem, f"try again in {delay:.0f} s", (delay, delay + 1.0))
        if delay := self._all_asked.delay(time.monotonic()):
            problem = "too many devices join at once"
            raise Busy(problem, f"try again in {delay:.0f} s", (delay, delay + 1.0))
        return Challenge(self._nonces.make(), NONCE_LIFE, time.time())

    async def join(self, joining: Joining, caller: str) -> IssuedIdentity | Pending:
        """Admit a device with a join string.

        Raises NoEntry, Refused, Taken, Revoked, BadPayload, TooOften, and Unavailable for an old challenge.
        """
        self._take(joining.nonce)
        token, address = f"token {joining.token}", f"join strings from {caller}"
        self._check(token, "with this join string")
        known = await self._storage.call(self._storage.identities.tokens.has, joining.token)
        if not known:
            self._check(address, "with unknown join strings from this address")
        key = key_of_request(joining.csr)
        admission = await self._storage.call(
            self._storage.identities.admission.join,
            joining,
            key,
            self._authority.joining.pin,
            self._authority,
            caller,
        )
        return self._answer(admission, token, *(() if known else (address,)))

    async def rejoin(self, rejoining: Rejoining, caller: str) -> IssuedIdentity:
        """Replace an expired certificate. Raises NoEntry, Revoked, BadPayload, TooOften."""
        self._take(rejoining.nonce)
        named = named_by(certificate(rejoining.certificate))
        certified, address = f"key {named.spki}", f"certificates from {caller}"
        self._check(certified, "with this certificate")
        known = self._peers.knows(named)
        if not known:
            self._check(address, "with unknown certificates from this address")
        key = key_of_request(rejoining.csr)
        pin = self._authority.joining.pin
        admission = await self._storage.call(
            self._storage.identities.admission.rejoin,
            rejoining,
            named,
            key,
            pin,
            self._authority,
            caller,
        )
        answer = self._answer(admission, certified, *(() if known else (address,)))
        assert isinstance(answer, IssuedIdentity)  # a device that is not approved is refused
        return answer

    async def renew(self, peer: Named, csr: bytes) -> IssuedIdentity:
        """Renew a certificate, for a device that was authorized. Raises BadPayload, TooOften."""
        key = key_of_request(csr)
        admission = await self._storage.call(
            self._storage.identities.admission.renew, peer.device, peer.serial, key, self._authority
        )
        answer = self._answer(admission)
        assert isinstance(answer, IssuedIdentity)
        return answer

    # -- inside ---------------------------------------------------------------------------------------------

    def _check(self, key: str, what: str) -> None:
        if self._failures.used_up(key):
            raise TooOften(f"too many attempts {what} were refused", "try again in a minute")

    def _take(self, nonce: bytes) -> None:
        if not self._nonces.take(nonce):
            raise Unavailable("the challenge is no longer valid", "request a new one and answer that")

    def _answer(self, admission: Admission, *counted: str) -> IssuedIdentity | Pending:
        """The answer to a caller. counted: what a refusal is counted for. Raises the error of a refusal."""
        if admission.error is not None:
            for key in counted:
                self._failures.count(key)
            raise admission.error
        device, certified = admission.device, admission.certified
        assert device is not None
        self._peers.learn(device)
        if certified is None:
            return Pending(bytes.fromhex(device.spki), RETRY)
        return IssuedIdentity(
            certified.pem,
            self._authority.bundle,
            self._authority.federation,
            device.device,
            device.role,
            self._address,
            self._peers.renewal_in(certified),
        )
