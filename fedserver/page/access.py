"""Who may look at the page: one-time links, and the sessions that they are traded for.

Both are texts that carry the time at which they end, authenticated by HMAC with a key in the state folder. So
everyone who may read the folder may make a link, without asking any process, and these are the same people
who may use the operators' socket. Nothing here reads a clock: callers give the time, in seconds since 1970.
"""

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass, field

LINK_SECONDS = 300.0
"""How long a link is valid."""
SESSION_SECONDS = 12 * 3600.0
"""How long a browser may look before it needs another link."""
KEY_BYTES = 32
LINK, SESSION = "link", "session"


@dataclass
class Access:
    """The links and sessions of one page process.

    key: `KEY_BYTES` secret bytes. start: the random name of this process, which is part of each link, so that
    no link outlives the process that remembers which links were used.

    Example:
        >>> access = Access(b"k" * KEY_BYTES, "a1")
        >>> session = access.trade(access.link(now=0.0), now=1.0)
        >>> session is not None and access.admits(session, now=2.0)
        True
    """

    key: bytes
    start: str
    used: dict[str, float] = field(default_factory=dict)
    """The links that were used, with the times at which they end."""

    def link(self, now: float) -> str:
        """A new link, valid once within `LINK_SECONDS`."""
        return self._sign(LINK, now + LINK_SECONDS)

    def trade(self, link: str, now: float) -> str | None:
        """A session for a link; None if the link is not valid, or was used before."""
        self.used = {each: end for each, end in self.used.items() if end > now}
        end = self._end(LINK, link)
        if end is None or end <= now or link in self.used:
            return None
        self.used[link] = end
        return self._sign(SESSION, now + SESSION_SECONDS)

    def admits(self, session: str, now: float) -> bool:
        """Whether this session is valid."""
        end = self._end(SESSION, session)
        return end is not None and now < end

    def _sign(self, kind: str, end: float) -> str:
        text = f"{int(end)}.{secrets.token_urlsafe(12)}"
        return f"{text}.{self._mac(kind, text)}"

    def _end(self, kind: str, signed: str) -> float | None:
        """The time at which a text of this kind ends; None if it is not one of ours."""
        text, _, mac = signed.rpartition(".")
        end = text.partition(".")[0]
        if not signed.isascii() or not end.isdecimal() or len(end) > 12:
            return None
        return float(end) if hmac.compare_digest(mac, self._mac(kind, text)) else None

    def _mac(self, kind: str, text: str) -> str:
        scope = f"{kind} {self.start} " if kind == LINK else f"{kind} "
        digest = hmac.new(self.key, (scope + text).encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")
