"""A server that was started a moment ago: whoever needs it waits until it answers, or knows that none will.

What the state folder shows decides. A folder without a lock, or with the lock of a process that lives: a
server is about to answer. No folder, or the lock of a process that is gone: `fedserver up` may have been
typed right before this command, so it gets the moment that a process needs to begin, and no more.
"""

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from fedserver.rpc.client import SOCKET
from fedserver.store.store import LOCK
from shoal.core.engine.timeouts import MOMENT

LOOK = 0.05
"""Seconds from one look to the next."""


def reach(state: Path, patience: float, tell: Callable[[str], None]) -> bool:
    """Wait until a server of this folder takes calls; whether one does. tell: told when there is a wait."""
    began = time.monotonic()
    while not answers(state):
        waited = time.monotonic() - began
        if waited >= (patience if is_starting(state) else min(patience, MOMENT)) or not state.parent.is_dir():
            return False
        tell(f"waiting for the server of {state}")
        time.sleep(LOOK)
    return True


def answers(state: Path) -> bool:
    """Whether somebody listens on the operators' socket."""
    with socket.socket(socket.AF_UNIX) as trial:
        try:
            trial.connect(str(state / SOCKET))
        except OSError:  # not there, nobody behind it, not ours, a name that is too long
            return False
    return True


def is_starting(state: Path) -> bool:
    """Whether the folder looks as if a server will answer soon."""
    try:
        owner = (state / LOCK).read_text().strip()
    except OSError:
        return state.is_dir()
    if not owner.isdigit():  # a process has the lock, and is about to write who it is
        return True
    try:
        os.kill(int(owner), 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # somebody else's
        return True
    return True
