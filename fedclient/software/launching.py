"""What the installed `fedclient` starts: itself, or the release that an update has brought; and its trial.

A trial is two verbs of the new release, each in a process of its own: `check`, and one round. If both end
well, it is adopted. So the process that judges needs of the new release nothing but its exit codes.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedclient.config import ClientConfig
from fedclient.software.folder import SoftwareFolder, folder_of
from fedclient.software.standing import STARTS, Standing
from fedclient.store.agent_log import AgentLog
from fedclient.store.state import DeviceFolder
from shoal import __version__
from shoal.core.errors import BadPayload, StorageFault
from shoal.shell import crash
from shoal.shell.console import Become, Console

LONGEST = 86400.0
"""Seconds that a trial may take: nothing else tells a process that hangs from one that waits for a task."""
AWAY = 3600.0
"""Seconds for which a trial waits for a server that does not answer: one that is down at that moment fails no
release, and a release that cannot reach it at all still fails."""
ENDING = 30.0
"""Seconds that a process has to end in order."""
DIE_WITH_PARENT = 1
"""The option of prctl(): a signal for the process when the one that started it is gone. Only Linux has it."""
NOT_NEEDED, STOPPED, NOT_OPENED = "no run needed this device", "it was stopped", "it cannot be opened"
"""Outcomes of a trial that say nothing about the release."""
Say = Callable[[str], None]


def launch(settings: ClientConfig, config: Path | None, console: Console, one_round: Sequence[str]) -> None:
    """Go on in the release that runs on this device, by raising Become; return if it is in this process.

    one_round: of a verb that runs until it is stopped, another one that does the same once; () of all other
    verbs. The former first try a release whose time has come, and end this process if they are stopped.
    """
    folder = folder_of(settings)
    if folder is None or folder.is_running() or not folder.is_ours():
        return
    if not one_round:
        current = folder.standing().for_package(__version__).current
        if current and (path := folder.as_it_is(current)):
            raise become(folder, path)
        return
    say = AgentLog(settings.state).noting(console.say)
    with folder.locked():
        if DeviceFolder(settings.state).busy():  # the verb says so
            return
        standing = folder.standing().for_package(__version__)
        try:
            standing = _unless_it_never_settles(folder, standing, say)
            if standing.due:
                standing = _try(folder, standing, _lines(settings, config, one_round), say)
        except StorageFault as error:  # a trial has to be noted, and what runs already does not
            say(f"no version is tried: {error}")
        path = _begin(folder, standing, say)
    if path is not None:
        raise become(folder, path)


def become(folder: SoftwareFolder, path: Path | None = None) -> Become:
    """The same command in the release at `path`; None: in the installed package, which may try one."""
    return Become(_command(sys.argv[1:]), _variables(folder, path))


def _unless_it_never_settles(folder: SoftwareFolder, standing: Standing, say: Say) -> Standing:
    """A release that was adopted, and was started since then without a result, is left again."""
    if standing.settled or standing.starts < STARTS:
        return standing
    left, standing = standing.current, standing.gone_back(f"after {STARTS} starts no result was accepted")
    folder.note(standing)
    crash.point("device.release-left")
    say(f"version {left}: {standing.failed[left]}; {standing.current or __version__} runs again")
    return standing


def _try(folder: SoftwareFolder, standing: Standing, lines: Sequence[Sequence[str]], say: Say) -> Standing:
    """Try the release that waits for its trial. Ends this process if the owner stops it meanwhile."""
    version, why = standing.trial, f"{STARTS} trials did not come to an end"
    if standing.starts < STARTS:
        standing = standing.begun()
        folder.note(standing)
        crash.point("device.trial-begun")
        say(f"version {version} is tried")
        try:
            why = _outcome(lines, _variables(folder, folder.opened(version)))
        except (BadPayload, StorageFault) as error:
            why = NOT_OPENED
            say(str(error))
    if not why:
        standing, said = standing.adopted(), "has done its first task, and runs from now on"
    elif why == NOT_OPENED:
        standing, said = standing.dropped(), "is fetched again"
    elif why in (STOPPED, NOT_NEEDED):
        standing, said = standing.stopped(), f"is tried another time: {why}"
    elif standing.starts < STARTS:
        said = f"is tried another time: {why}"
    else:
        standing, said = standing.rejected(why), f"is not tried again: {why}"
    folder.note(standing)
    crash.point("device.trial-judged")
    say(f"version {version} {said}")
    if why == STOPPED:
        sys.exit(0)
    return standing


def _outcome(lines: Sequence[Sequence[str]], variables: Mapping[str, str]) -> str:
    """Why a trial was not passed; "" if it was."""
    for line in lines:
        code, data = _ended(_command(line), variables)
        if code is None:
            return STOPPED
        if code:
            return f"`fedclient {line[0]}` ended with exit code {code}"
        if data.get("tasks") == 0:
            return NOT_NEEDED
    return ""


def _begin(folder: SoftwareFolder, standing: Standing, say: Say) -> Path | None:
    """Where the release is that runs now; None: it is the installed package. A start that has to lead to a
    result is counted, unless the disk is full."""
    while standing.current:
        try:
            path = folder.opened(standing.current)
            if not standing.settled:
                with suppress(StorageFault):
                    folder.note(standing.begun())
                    crash.point("device.release-started")
            return path
        except BadPayload as error:
            say(f"version {standing.current} is not started: {error}")
            standing = standing.lost()
            with suppress(StorageFault):
                folder.note(standing)
        except StorageFault as error:
            say(f"version {standing.current} is not started: {error}")
            return None
    return None


def _lines(settings: ClientConfig, config: Path | None, one_round: Sequence[str]) -> list[list[str]]:
    """The verbs of a trial, with the settings that this process has."""
    given = ["--config", str(config.absolute())] if config else []
    calling = ["--state", str(settings.state)]
    calling += ["--server", settings.server] if settings.server else []
    calling += ["--device", settings.device] if settings.device else []
    calling += ["--insecure-loopback"] if settings.insecure_loopback else []
    calling += ["--give-up-after", f"{AWAY:g}"]
    return [["check", *given, "--json"], [*one_round, *given, *calling, "--json"]]


def _command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-P", "-m", "fedclient", *arguments]


def _variables(folder: SoftwareFolder, path: Path | None) -> dict[str, str]:
    """Of a process that finds this program in `path`, and all else where this one does."""
    places = [str(path)] if path else []
    places += [each or os.getcwd() for each in sys.path if not Path(each).is_relative_to(folder.root)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places)}


def _ended(command: Sequence[str], variables: Mapping[str, str]) -> tuple[int | None, Mapping[str, Any]]:
    """The exit code of a process and what it found; no code if the owner has stopped this one meanwhile."""
    with (
        subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=variables,
            preexec_fn=_end_with_parent,
        ) as process,
        _passing_signals(process) as stopped,
    ):
        try:
            out, _ = process.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                out, _ = process.communicate(timeout=ENDING)
            except subprocess.TimeoutExpired:
                process.kill()
                out, _ = process.communicate()
    if stopped:
        return None, {}
    try:
        found = json.loads(out)["data"]
    except (ValueError, TypeError, KeyError):
        found = None
    return process.returncode, found if isinstance(found, dict) else {}


@contextmanager
def _passing_signals(process: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """The signals that came to stop this process, which are passed on."""
    came = list[int]()

    def stop(number: int, frame: object) -> None:
        came.append(number)
        process.terminate()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_with_parent() -> None:
    """In a new process: it ends when this one is killed, and does not hold the device's folder."""
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGTERM)
