"""`fedserver audit ...`: what happened to identities, and whether the log of it is whole."""

import json
import re
from collections import deque
from pathlib import Path
from typing import Any

import click

from fedserver.cli.options import state_option
from fedserver.store.identities.audit import Event, Head
from shoal.core.errors import ConfigError, ShoalError
from shoal.shell.console import Console, Result, verb

STATE = state_option("The folder of the server that is meant; it need not run.")


class LogBroken(ShoalError):
    """Lines of the audit log were changed or taken out."""

    code = "audit-broken"


@click.group()
def audit() -> None:
    """The audit log: show it, and find out whether it is whole."""


@audit.command(epilog="Example: fedserver audit verify --state server && echo whole")
@verb
@STATE
@click.option(
    "--expect", metavar="NUMBER:HASH", help="A head that an earlier verify printed, kept elsewhere."
)
def verify(console: Console, state: Path, expect: str | None) -> Result:
    """Check every line: that none was changed, taken out or put in, the last ones neither.

    The file and the database are compared with each other. Who can rewrite both can hide that; against them,
    keep the head that is printed here on another machine, and ask for it with --expect.
    """
    from fedserver.store.identities import audit as log

    found = log.verify(state, _head(expect) if expect else None)
    facts = {"lines": found.head.number, "hash": found.head.hash, "wrong": found.wrong}
    if found.wrong:
        broken = LogBroken(f"the audit log of {state} is broken: {found.wrong}", "compare it with a backup")
        return Result(facts, "", broken)
    if not found.expected:
        broken = LogBroken(f"{expect} is not in the audit log of {state}", "the whole log was written anew")
        return Result(facts, "", broken)
    return Result(
        facts, f"{found.head.number} lines, all as they were; head {found.head.number}:{found.head.hash}"
    )


@audit.command(epilog="Example: fedserver audit show --event join-refused --last 20")
@verb
@STATE
@click.option("--event", type=click.Choice([event.value for event in Event]), help="Only these.")
@click.option("--device", metavar="DEVICE", help="Only of this device.")
@click.option("--last", type=click.IntRange(min=1), default=100, show_default=True, help="How many at most.")
def show(console: Console, state: Path, event: str | None, device: str | None, last: int) -> Result:
    """The latest lines of the log, oldest first, without checking them."""
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
    return Result({"lines": list(found)}, "\n".join(map(_text, found)) or "there is no such line")


def _text(line: dict[str, Any]) -> str:
    facts = ", ".join(f"{name}={value}" for name, value in line["facts"].items())
    return f"{line['number']:>6}  {line['at']}  {line['event']}  {facts}".rstrip()


def _head(text: str) -> Head:
    found = re.fullmatch(r"([0-9]{1,12}):([0-9a-f]{64})", text)
    if found is None:
        raise ConfigError(f"{text!r} is not NUMBER:HASH", "as an earlier fedserver audit verify printed it")
    return Head(int(found[1]), found[2])
