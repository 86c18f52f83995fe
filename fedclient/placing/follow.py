"""`fedclient place --follow`: ask again from time to time, and say when there is another model."""

import asyncio
import os
import shlex
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from fedclient.store.state import MODEL, PLACEMENT, read_json
from shoal.core.errors import (
    Busy,
    ConfigError,
    NotFound,
    NotGenuine,
    Refused,
    ShoalError,
    TooOften,
    Unavailable,
)
from shoal.shell import disk

FOLLOWED = "followed"
"""The file beside the model with the SHA-256 of the model for which the hook has run."""
HOOK = 600.0
"""Seconds that a hook may take."""
PASSING = (Unavailable, TooOften, Busy, NotFound, Refused, NotGenuine)
"""Errors after which the server is asked again, also at the beginning: it is away, the run cannot place a
device yet, or what it gives is not what it has signed. What else is wrong then needs a person. Later it may
pass, as a full disk does, or data that are being replaced: the former model stays, and no one is there."""


async def follow(
    place: Callable[[], Awaitable[object]],
    announce: Callable[[], object],
    every: float,
    say: Callable[[str], None],
) -> None:
    """Place the device and announce its model, again and again, until the task is canceled.

    every: seconds between two requests. A hook that has begun is not cut off. Raises what the first requests
    raise, up to one that succeeds, unless it is one of `PASSING`.
    """
    works = False
    while True:
        try:
            await place()
            announce()
            works = True
        except ShoalError as error:
            if not works and not isinstance(error, PASSING):
                raise
            say(f"asking again in {every:.0f} s: {error}")
        await asyncio.sleep(every)


def command_of(hook: str) -> list[str]:
    """The words of a hook. Raises ConfigError for quotes that do not end."""
    try:
        return shlex.split(hook)
    except ValueError as error:
        raise ConfigError(f"the hook {hook!r} cannot be read: {error}", "close its quotes") from None


def announce(folder: Path, hook: list[str], say: Callable[[str], None]) -> bool:
    """Run the hook if the model in this folder is another one than at its last run. Returns whether it is.

    The model is in place before, whole. The hook gets SHOAL_MODEL, SHOAL_RUN and SHOAL_CLUSTER in its
    environment. One that fails runs again the next time.
    """
    placed = read_json(folder / PLACEMENT)
    name, followed, known = str(placed.get("model") or ""), folder / FOLLOWED, b""
    with suppress(OSError):  # what cannot be read is written again
        known = followed.read_bytes()
    if not name or known == name.encode():
        return False
    where = {"SHOAL_RUN": str(placed.get("run")), "SHOAL_CLUSTER": str(placed.get("cluster"))}
    say(f"there is another model: cluster {placed.get('cluster')} of run {placed.get('run')}, {name[:12]}")
    if hook:
        environment = {**os.environ, **where, "SHOAL_MODEL": str((folder / MODEL).absolute())}
        try:
            ended = subprocess.run(hook, env=environment, timeout=HOOK, check=False)  # noqa: S603 - the owner's
        except ValueError as error:
            say(f"the hook cannot run: no program can get the name of this cluster or run: {error}")
            return True
        except (OSError, subprocess.TimeoutExpired) as error:
            say(f"the hook failed and runs again the next time: {error}")
            return True
        if ended.returncode:
            say(f"the hook ended with code {ended.returncode} and runs again the next time")
            return True
    disk.write(followed, name.encode())
    return True
