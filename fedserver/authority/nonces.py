"""Numbers that callers must answer to: each is good once, for a minute, and only so many are out."""

import secrets
import time
from collections import OrderedDict

from shoal.core.identity.proof import NONCE

VALID = 60.0
"""Seconds that a number is good for."""
MOST = 8192
"""How many are out at a time; one more, and the oldest is good no longer. 512 KiB of memory at most."""


class Nonces:
    """In memory alone: after a restart every caller asks for a new one."""

    def __init__(self) -> None:
        self._ends: OrderedDict[bytes, float] = OrderedDict()

    def make(self) -> bytes:
        nonce = secrets.token_bytes(NONCE)
        self._ends[nonce] = time.monotonic() + VALID
        while len(self._ends) > MOST:
            self._ends.popitem(last=False)
        return nonce

    def take(self, nonce: bytes) -> bool:
        """Whether it is good; it is not from now on."""
        return time.monotonic() < self._ends.pop(nonce, 0.0)
