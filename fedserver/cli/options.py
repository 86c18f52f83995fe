"""What the verbs share: the options --state and --connect, and the connection to a running server."""

import functools
import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from shoal.core.engine.timeouts import ANSWER
from shoal.core.errors import ConfigError, Unavailable
from shoal.shell.console import Console, Result

PATH = click.Path(path_type=Path)
POLL_SECONDS = 0.05
"""Seconds between two looks at a server that is starting."""
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(text: str) -> float:
    """A length of time, such as 90s or 10m. Raises ConfigError."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)", text)
    if found is None:
        raise ConfigError(f"{text!r} is not a length of time", "use a form like 90s, 10m, 24h or 1d")
    return float(found[1]) * UNITS[found[2]]


state_option = click.option(
    "--state",
    type=PATH,
    envvar="FEDSERVER_STATE",
    default=Path("server"),
    show_default=True,
    show_envvar=True,
    metavar="DIR",
    help="The server's state folder.",
)

connect_option = click.option(
    "--connect",
    type=PATH,
    envvar="FEDSERVER_CONNECT",
    show_envvar=True,
    metavar="FOLDER",
    help="Instead of --state: call over the network, with the operator's certificate in FOLDER.",
)


def place(state: Path, connect: Path | None) -> Path:
    """The folder by which a server is reached. Raises ConfigError for one of no certificate, or for both."""
    if connect is None:
        return state.absolute()
    from fedserver.rpc.channel import read_card

    source = click.get_current_context().get_parameter_source("state")
    if source is ParameterSource.COMMANDLINE:
        raise ConfigError(
            "--state and --connect are both given",
            "give --state on the server's machine, --connect elsewhere",
        )
    read_card(connect)
    return connect.absolute()


def connected(function: Callable[..., Result]) -> Callable[..., Result]:
    """Add --state and --connect; the function gets a client of the server that these name.

    A server whose process runs but does not answer yet is waited for; see `wait_option`.
    """

    @state_option
    @connect_option
    @click.pass_obj
    @functools.wraps(function)
    def wrapper(
        console: Console, /, state: Path, connect: Path | None, patience: float | None = None, **options: Any
    ) -> Result:
        from fedserver.rpc.client import OperatorClient

        folder = place(state, connect)
        if connect is None:
            reach(folder, patience, console.progress)
        elif patience:
            from fedserver.rpc.channel import wait_for

            wait_for(folder, patience)
        with OperatorClient(folder) as client:
            return function(client, **options)

    return wrapper


wait_option = click.option(
    "--wait",
    "patience",
    type=click.FloatRange(min=0.0),
    metavar="SECONDS",
    help="Wait up to SECONDS for the server to start.  "
    f"[default: 0; {ANSWER:.0f} if its process runs but does not answer yet]",
)
"""For a verb that is `connected`."""


def reach(state: Path, patience: float | None, report: Callable[[str], None]) -> None:
    """Return as soon as a server of this folder takes calls. Raises Unavailable when none does.

    patience: seconds to wait for one; None: none at all, unless its process runs already. report: called
    with a text while there is a wait.
    """
    began = time.monotonic()
    while not answers(state):
        limit = patience if patience is not None else ANSWER if is_running(state) else 0.0
        if time.monotonic() - began >= limit:
            raise _absent(state)
        report(f"waiting for the server of {state}")
        time.sleep(POLL_SECONDS)


def _absent(state: Path) -> Unavailable:
    if not state.is_dir():
        return Unavailable(
            f"there is no server folder at {state}",
            f"give --state, or create one with: fedserver init --state {state} --host NAME",
        )
    wait = f"to wait for one: fedserver status --state {state} --wait SECONDS"
    if is_running(state):
        return Unavailable(f"the server of {state} is running but does not answer yet", wait)
    return Unavailable(
        f"no server is running on {state}",
        f"start one with: fedserver up --state {state}; {wait}",
    )


def answers(state: Path) -> bool:
    """Whether a process listens on the operators' socket."""
    from fedserver.rpc.channel import SOCKET

    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(state / SOCKET))
        except OSError:  # missing, left by a process that is gone, not ours, or a path that is too long
            return False
    return True


def is_running(state: Path) -> bool:
    """Whether a living process has the folder's lock, so that a server will answer soon.

    The lock itself is not tried: that would take it from a server that is starting at this moment.
    """
    from fedserver.store.store import LOCK

    try:
        owner = (state / LOCK).read_text().strip()
    except OSError:
        return False
    if not owner.isdigit():  # a process has the lock and is about to write its number
        return True
    try:
        os.kill(int(owner), 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # it belongs to another user
        return True
    return not _has_ended(int(owner))


def _has_ended(process: int) -> bool:
    """Whether a process that still has a number has ended, and its parent has not asked for its exit code, as
    in a container without an init process."""
    try:
        facts = Path(f"/proc/{process}/stat").read_text()
    except OSError:  # no such file system, or it is gone only now
        return False
    return facts.rpartition(")")[2].split()[:1] == ["Z"]
