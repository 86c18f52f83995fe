"""What leaves the device of a failure: enough to fix the learner, and no secrets of the owner.

A traceback names files and can show values. Before it is sent to the server, the owner's home folder becomes
`~`, and secrets are removed: join strings, private keys, passwords in addresses and settings, and the values
of environment variables whose names mark them as secret. What an author's code itself writes into an error
cannot be recognized here, so a learner must not put data into its errors.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from shoal.core.exchange.link import Failure

MAX_MESSAGE, MAX_DETAILS = 2000, 8000
"""Characters that leave of a message (its beginning) and of a traceback (its end, which names the cause)."""
CUT = "[removed]"
SECRET_NAME = re.compile(r"(key|token|secret|passw|credential|auth|dsn)", re.IGNORECASE)
SHORTEST = 6
"""The shortest value of a variable that is removed; shorter ones occur in any text by chance."""
SETTING = r"\w*(?:passw\w*|secret|token|api_?key|credential)\w*"
PATTERNS = (
    (re.compile(r"shoal1:\S+"), f"shoal1:{CUT}"),
    (re.compile(r"-----BEGIN [^-]*PRIVATE KEY-----.*?(-----END [^-]*PRIVATE KEY-----|\Z)", re.DOTALL), CUT),
    (re.compile(r"(\w://)[^\s/@:]+:[^\s/@]+@"), rf"\1{CUT}@"),
    (re.compile(r"(?i)\b(bearer|basic) [a-z0-9+/._~=-]{8,}"), rf"\1 {CUT}"),
    (re.compile(rf"(?i)(\b{SETTING}['\"]?\s*[=:]\s*['\"]?)[^\s'\",)}}]+"), rf"\1{CUT}"),
)


def redacted(
    failure: Failure, environment: Mapping[str, str] = os.environ, home: Path | None = None
) -> Failure:
    """A failure as it may leave the device. home: the owner's home folder; by default that of this
    process.
    """
    names = [str(home or Path.home()), environment.get("HOME", "")]
    message = _redacted(failure.message, environment, names)[:MAX_MESSAGE]
    details = _redacted(failure.details, environment, names)[-MAX_DETAILS:]
    return replace(failure, message=message, details=details)


def _redacted(text: str, environment: Mapping[str, str], homes: list[str]) -> str:
    secrets = [
        value for name, value in environment.items() if SECRET_NAME.search(name) and len(value) >= SHORTEST
    ]
    # The longest first: a short secret that is part of a longer one would leave the rest of it readable.
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, CUT)
    for pattern, instead in PATTERNS:
        text = pattern.sub(instead, text)
    for home in homes:
        if len(home) > 1:
            text = re.sub(rf"{re.escape(home.rstrip('/'))}(?=[/'\"\s:,)]|$)", "~", text)
    return text
