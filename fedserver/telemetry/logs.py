"""The server's log on stderr: lines may quote what devices sent, and devices may cause lines as fast as they
like. So no text of a device looks like a line of the log, and each kind of line comes at a bounded rate.
"""

import json
import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from shoal.shell.console import continued, printable

MINUTE = 60.0
MAX_WARNINGS, MAX_LINES = 60, 600
"""Lines of one kind in a minute, from warnings upwards and below."""
MAX_KINDS = 4096


class Printable(logging.Formatter):
    """Control characters are shown as escapes, and the further lines of a text are marked as such."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 -- the name that logging gives it
        record.message = continued(record.message)
        return printable(super().formatMessage(record))

    def formatException(self, ei: object) -> str:  # noqa: N802
        return printable(continued("\n" + super().formatException(ei)).lstrip("\n"))  # type: ignore[arg-type]


class Json(logging.Formatter):
    """One JSON object for each line: time (UTC), level, logger, message, and the traceback, if there is one.

    JSON escapes what a device sent, so no text of a device looks like a line of the log.
    """

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        found = {"time": at, "level": record.levelname.lower(), "logger": record.name}
        found["message"] = record.getMessage()
        if record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        return json.dumps(found)


@dataclass
class _Kind:
    """Lines of one kind since `begun`, by a monotonic clock."""

    begun: float
    count: int = 0


class Bounded(logging.Filter):
    """Lets a bounded number of lines of one kind through in a minute, and says how many were left out.

    Lines are of one kind if the same statement wrote them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if len(self._kinds) >= MAX_KINDS:
            self._kinds.clear()
        key = record.name, str(record.msg)
        most = MAX_WARNINGS if record.levelno >= logging.WARNING else MAX_LINES
        kind = self._kinds.setdefault(key, _Kind(now))
        left_out = 0
        if now - kind.begun >= MINUTE:
            left_out = max(0, kind.count - most)
            self._kinds[key] = kind = _Kind(now)
        kind.count += 1
        if left_out:
            record.msg = f"{record.msg} [{left_out} more lines of this kind were left out]"
        return kind.count <= most
