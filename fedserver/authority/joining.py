"""Challenge, join, return: what EnrollmentService does, without a network.

A join string or key that was refused five times in a minute has to wait. So does an address, but only with
join strings and keys that the server does not know: a stranger behind the same address as a fleet does not
keep the fleet from joining. A join costs nothing; a device that returns five times in a minute has to wait,
too, whatever keys it goes on with.
Challenges, which anyone may request, are paced for each address and for all: no one can request enough of
them to make those of other devices invalid. All this is checked before anything is verified, which takes a
hundred times longer.
"""

import secrets
import time
from collections import OrderedDict

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey as PublicKey

from fedserver.authority.peers import Peers
from fedserver.authority.rate_limit import RateLimit, TokenBuckets
from fedserver.store.identities.admission import Admission, NoEntry
from shoal.core.engine.token_bucket import TokenBucket
from shoal.core.errors import Busy, TooOften, Unavailable
from shoal.core.identity.certificates import certificate, key_in, key_of_request, named_by, pin_of
from shoal.core.identity.joining import NONCE, Challenge, IssuedIdentity, Joining, Pending, Returning
from shoal.core.identity.proof import is_signed

FAILURES = 5
"""Refusals per minute for one join string or key, and for all unknown ones from one address; also how often
a device, or a key that none has, may return in a minute."""
CHALLENGES, AT_ONCE = 20.0, 500.0
"""Challenges per second, and at once, for one address: a fleet may be behind it."""
ALL_CHALLENGES, ALL_AT_ONCE, FURTHEST = 100.0, 1000.0, 45.0
"""The same for all addresses, and the longest wait in seconds. So at most 7,000 challenges
are open: less than `MAX_NONCES`."""
RETRY = 10.0
"""Seconds after which a device that waits for approval asks again."""


NONCE_LIFE = 60.0
"""Seconds for which a nonce is valid."""
MAX_NONCES = 8192
"""How many are open at a time; one more makes the oldest invalid. At most 512 KiB of memory."""


class Nonces:
    """The nonces that callers must answer to, valid once; only in memory: a restart voids them."""

    def __init__(self) -> None:
        self._ends: OrderedDict[bytes, float] = OrderedDict()

    def make(self) -> bytes:
        nonce = secrets.token_bytes(NONCE)
        self._ends[nonce] = time.monotonic() + NONCE_LIFE
        while len(self._ends) > MAX_NONCES:
            self._ends.popitem(last=False)
        return nonce

    def take(self, nonce: bytes) -> bool:
        """Return whether a nonce is valid, and make it invalid."""
        return time.monotonic() < self._ends.pop(nonce, 0.0)


class JoinService:
    """Gives devices their certificates. address: where devices call, as their identity will say."""

    def __init__(self, peers: Peers, address: str) -> None:
        self._peers, self._authority, self._address = peers, peers.authority, address
        self._nonces, self._failures = Nonces(), RateLimit(FAILURES)
        self._asked = TokenBuckets(lambda: TokenBucket(CHALLENGES, AT_ONCE, FURTHEST))
        self._all_asked = TokenBucket(ALL_CHALLENGES, ALL_AT_ONCE, FURTHEST)

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
        known = await self._peers.storage.call(self._peers.storage.identities.tokens.has, joining.token)
        if not known:
            self._check(address, "with unknown join strings from this address")
        key = key_of_request(joining.csr)
        admission = await self._peers.storage.call(
            self._peers.storage.identities.admission.join,
            joining,
            pin_of(key).hex(),
            self._authority.pin,
            caller,
        )
        return self._answer(admission, key, token, *(() if known else (address,)))

    async def come_back(self, returning: Returning, caller: str) -> IssuedIdentity | Pending:
        """Give another certificate to a device that proves that it has its key, for this or for another key.

        Raises NoEntry, Revoked, BadPayload, TooOften.
        """
        self._take(returning.nonce)
        found = certificate(returning.certificate)
        shown, key = named_by(found), key_of_request(returning.csr)
        owner, address = self._peers.device_of(shown.spki), f"keys from {caller}"
        own = f"device {owner}" if owner else f"key {shown.spki}"
        self._check(own, "with this key")
        if not owner:
            self._check(address, "with unknown keys from this address")
        pin = self._authority.pin
        if not is_signed(key_in(found), returning.nonce, pin, returning.csr, returning.signature):
            self._failures.count(address)  # not for the key, whose owner this need not be
            raise NoEntry
        self._failures.count(own)
        admission = await self._peers.storage.call(
            self._peers.storage.identities.admission.come_back,
            shown,
            self._authority.has_issued(found),
            pin_of(key).hex(),
            caller,
        )
        changes = admission.holds and shown.spki != pin_of(key).hex()
        answer = self._answer(admission, key, *(() if owner else (address,)))
        if changes:  # calls that are open were made with the key before
            self._peers.cut(shown.name)
        return answer

    # -- inside ---------------------------------------------------------------------------------------------

    def _check(self, key: str, what: str) -> None:
        if self._failures.used_up(key):
            raise TooOften(f"too many attempts {what} were refused", "try again in a minute")

    def _take(self, nonce: bytes) -> None:
        if not self._nonces.take(nonce):
            raise Unavailable("the challenge is no longer valid", "request a new one and answer that")

    def _answer(self, admission: Admission, key: PublicKey, *counted: str) -> IssuedIdentity | Pending:
        """The answer to a caller. key: in its request. counted: what a refusal is counted for. Raises the
        error of a refusal."""
        if admission.device is not None:
            self._peers.learn(admission.device)
        if admission.error is not None:
            for each in counted:
                self._failures.count(each)
            raise admission.error
        device, authority = admission.device, self._authority
        assert device is not None
        if not admission.holds:
            return Pending(pin_of(key), RETRY)
        return IssuedIdentity(
            authority.issue(device.role.value, device.device, key),
            authority.pem,
            authority.federation,
            device.device,
            device.role,
            self._address,
        )
