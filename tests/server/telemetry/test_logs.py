"""The server's log: no text of a device looks like a line of it, and no device fills the disk with it."""

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fedserver.telemetry import logs
from fedserver.telemetry.logs import Bounded, Printable

FORGED = "lost\n2026-01-01 00:00:00,000 WARNING shoal.auth: denied\r\x1b[2K"


@contextmanager
def logged() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    """A logger that writes as `fedserver up` does."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(Printable("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(Bounded())
    log = logging.getLogger("tests.logs")
    log.addHandler(handler)
    try:
        yield log, written
    finally:
        log.removeHandler(handler)


def test_a_text_of_a_device_makes_no_line_of_the_log() -> None:
    with logged() as (log, written):
        log.warning("device %s: %s", "d0", FORGED)
        try:
            raise ValueError(FORGED)
        except ValueError:
            log.exception("a call failed")
    first, *others = written.getvalue().splitlines()
    assert first.endswith("device d0: lost")
    assert others[0] == "  | 2026-01-01 00:00:00,000 WARNING shoal.auth: denied"
    begun = [line for line in others if not line.startswith("  | ")]
    assert [line.partition(" tests.logs: ")[2] for line in begun] == ["a call failed"]
    assert "\x1b" not in written.getvalue()


def test_lines_of_one_kind_come_at_a_bounded_rate_and_the_rest_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with logged() as (log, written):
        for number in range(logs.MAX_WARNINGS + 40):
            log.warning("a session of %s was replaced", f"d{number}")
        log.warning("another kind")
        assert len(written.getvalue().splitlines()) == logs.MAX_WARNINGS + 1
        now += logs.MINUTE
        log.warning("a session of %s was replaced", "d0")
        log.warning("a session of %s was replaced", "d1")
    *_, last, after = written.getvalue().splitlines()
    assert last.endswith("a session of d0 was replaced [40 more lines of this kind were left out]")
    assert after.endswith("a session of d1 was replaced")


def test_a_line_in_json_is_one_object_whatever_a_device_sent() -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logs.Json())
    log = logging.getLogger("tests.logs.json")
    log.addHandler(handler)
    try:
        log.warning("device %s: %s", "d0", FORGED)
        try:
            raise ValueError(FORGED)
        except ValueError:
            log.exception("a call failed")
    finally:
        log.removeHandler(handler)
    first, second = map(json.loads, written.getvalue().splitlines())
    assert (first["level"], first["logger"], first["message"]) == (
        "warning",
        "tests.logs.json",
        f"device d0: {FORGED}",
    )
    assert first["time"].endswith("+00:00")
    assert second["traceback"].startswith("Traceback")
    assert "\x1b" not in written.getvalue()
