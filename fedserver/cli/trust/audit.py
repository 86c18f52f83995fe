"""`fedserver audit ...`: show and verify the audit log."""

import functools
import json
import re
from collections import deque
from pathlib import Path
from typing import Any

import click

from fedserver.cli.options import state_option
from fedserver.store.identities.audit import Event, Head
from shoal.core.errors import ConfigError, ShoalError
from shoal.shell.console import Group, Result, one_line, verb


class LogBroken(ShoalError):
    """Lines of the audit log were changed or removed.

    To do: find out by whom; compare it with a backup.
    """

    code = "audit-broken"


@click.group(cls=Group)
def audit() -> None:
    """Show and verify the audit log."""


@audit.command(epilog="Example: fedserver audit verify --state server && echo whole")
@verb
@state_option
@click.option(
    "--expect",
    metavar="NUMBER:HASH",
    help="Also check that the log contains this head, which an earlier verify printed.",
)
def verify(state: Path, expect: str | None) -> Result:
    """Verify that no line, including the last, was changed, removed or inserted; without the server.

    The file is compared with the database. Someone who can rewrite both can hide a change; to detect that,
    keep the head that this command prints on another machine, and give it to --expect. Exits with code 1 if
    the log is broken. With a PostgreSQL database, verify the folder of the server that leads: the file of one
    that stands by ends where it led last.
    """
    from fedserver.config import read_server
    from fedserver.store.identities import audit as log

    elsewhere, table = read_server({"state": state}).elsewhere, None
    if elsewhere is not None:
        from fedserver.ha import postgresql

        table = functools.partial(postgresql.read, elsewhere.database)
    found = log.verify(state, _head(expect) if expect else None, table)
    facts = {"lines": found.head.number, "hash": found.head.hash, "wrong": found.wrong}
    if found.wrong:
        broken = LogBroken(f"the audit log of {state} is broken: {found.wrong}", "compare it with a backup")
        return Result(facts, "", broken)
    if not found.expected:
        broken = LogBroken(
            f"{expect} is not in the audit log of {state}",
            "the whole log was rewritten; compare it with a backup",
        )
        return Result(facts, "", broken)
    return Result(facts, f"{found.head.number} lines, all intact; head {found.head.number}:{found.head.hash}")


@audit.command(epilog="Example: fedserver audit show --event join-refused --last 20")
@verb
@state_option
@click.option(
    "--event", type=click.Choice([event.value for event in Event]), help="Show only events of this kind."
)
@click.option("--device", metavar="DEVICE", help="Show only events of this device.")
@click.option(
    "--last",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="Show at most the last N lines.",
)
def show(state: Path, event: str | None, device: str | None, last: int) -> Result:
    """Show the latest lines of the log, oldest first, without verifying them."""
    from fedserver.store.identities import audit as log

    found: deque[dict[str, Any]] = deque(maxlen=last)
    for text in log.lines(state):
        try:
            line = json.loads(text)
            facts = line["facts"]
        except (ValueError, KeyError, TypeError):
            continue  # `verify` says which
        if event in (None, line["event"]) and device in (None, facts.get("device")):
            found.append(line)
    return Result({"lines": list(found)}, "\n".join(map(_text, found)) or "no line matches")


def _text(line: dict[str, Any]) -> str:
    facts = ", ".join(f"{name}={value}" for name, value in line["facts"].items())
    return one_line(f"{line['number']:>6}  {line['at']}  {line['event']}  {facts}".rstrip())


def _head(text: str) -> Head:
    found = re.fullmatch(r"([0-9]{1,12}):([0-9a-f]{64})", text)
    if found is None:
        raise ConfigError(f"{text!r} is not NUMBER:HASH", "give the head that fedserver audit verify printed")
    return Head(int(found[1]), found[2])
