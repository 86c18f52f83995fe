"""`fedclient doctor`: what a device needs, tried one after the other, with what to do about it."""

import asyncio
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

import click

from fedclient.cli.options import configured
from fedclient.config import ClientConfig, LimitsConfig
from fedclient.identity.connection import Endpoint, endpoint
from fedclient.store.state import DeviceFolder
from shoal.core.engine.timeouts import MOMENT
from shoal.core.errors import ShoalError
from shoal.core.texts import span
from shoal.shell.console import Result, one_line, verb

IMPORTS = 120.0
"""Seconds that a package may take to load, on a slow device."""
AHEAD = 60.0
"""Seconds by which the clock may differ from the server's."""
LEAST_FREE = 256 << 20
"""Bytes that have to be free where the owner has not said how many models may take."""


class Unwell(ShoalError):
    """Something that the device needs does not work.

    To do: the hints of `fedclient doctor`.
    """

    code, exit_code = "unwell", 1


@dataclass(frozen=True)
class Finding:
    """One thing that was tried. hint: what to do; "" if all is well."""

    what: str
    text: str
    hint: str = ""

    @property
    def well(self) -> bool:
        return not self.hint


@click.command(epilog="Example: fedclient doctor --config device.yaml")
@verb
@configured("server", "insecure_loopback", "state")
def doctor(settings: ClientConfig) -> Result:
    """Find out what keeps this device from working: packages, disk, identity, line, TLS and clock.

    Nothing is changed. Packages are imported in a process of their own, so that one that crashes does no
    harm. The learner and the data are tried by `fedclient check`.
    """
    found = [test(settings) for test in (_packages, _disk, _agent)]
    try:
        reached = endpoint(settings)
    except ShoalError as error:  # without an identity there is no server to ask
        found.append(Finding("identity", error.message, error.hint))
    else:
        for tried in (_identity, _line, _clock):
            try:
                found.append(tried(reached))
            except ShoalError as error:
                found.append(
                    Finding(tried.__name__.strip("_"), error.message, error.hint or "see the message")
                )
    wrong = [each for each in found if not each.well]
    lines = [line for each in found for line in _shown(each)]
    unwell = Unwell(f"{len(wrong)} of {len(found)} things do not work") if wrong else None
    return Result({"findings": list(map(asdict, found)), "well": not wrong}, "\n".join(lines), unwell)


def _shown(found: Finding) -> list[str]:
    mark = "ok   " if found.well else "WRONG"
    hint = [f"{'':<17}{one_line(found.hint)}"] if found.hint else []
    return [f"{mark} {found.what + ':':<11}{one_line(found.text)}", *hint]


def _packages(settings: ClientConfig) -> Finding:
    """The package that computes, imported in a child: a broken one can end the process that imports it."""
    name = "torch" if settings.learner is not None else "onnxruntime"
    code = f"import {name}; print({name}.__version__)"
    try:
        ended = subprocess.run(  # noqa: S603 - our own words
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=IMPORTS, check=False
        )
    except subprocess.TimeoutExpired:
        return Finding(
            "packages", f"{name} was not loaded within {IMPORTS:.0f} s", "look at the machine's load"
        )
    if ended.returncode == 0:
        return Finding("packages", f"{name} {ended.stdout.strip()}, Python {sys.version.split()[0]}")
    said = (ended.stderr.strip().splitlines() or [f"it ended with code {ended.returncode}"])[-1]
    return Finding("packages", f"{name} cannot be loaded: {said}", f"pip install {name}")


def _disk(settings: ClientConfig) -> Finding:
    root = settings.state.absolute()
    existing = next(path for path in (root, *root.parents) if path.exists())
    if not os.access(existing, os.W_OK):
        hint = f"give the user of this device the right to write to {existing}"
        return Finding("disk", f"{existing} cannot be written to", hint)
    space = os.statvfs(existing)
    free, needed = space.f_bavail * space.f_frsize, settings.limits.kept_bytes
    if needed == LimitsConfig.kept_bytes:  # which no one has chosen for this disk
        needed = LEAST_FREE
    text = f"{free / 1e9:.1f} GB free at {root}"
    if free < needed:
        return Finding("disk", f"{text}, and models may take {needed / 1e9:.1f} GB", "free some space")
    return Finding("disk", text)


def _agent(settings: ClientConfig) -> Finding:
    works = DeviceFolder(settings.state).busy()
    return Finding("agent", f"{'works' if works else 'none works'} in {settings.state}")


def _identity(reached: Endpoint) -> Finding:
    identity = reached.identity
    if identity is None:
        return Finding("identity", "none: plain text to a server on this machine")
    return Finding("identity", f"{identity.device}, {identity.role.value} in {identity.federation}")


def _line(reached: Endpoint) -> Finding:
    """Whether the server answers, with TLS if the device has an identity."""
    from fedclient.identity.link import HINTS
    from fedclient.identity.rpc import cause_of, credentials
    from fedclient.net.rpc import answers, error_of, why_silent

    assert reached.address is not None
    began = time.monotonic()
    secure = credentials(reached.identity) if reached.identity else None
    if asyncio.run(answers(reached.address, MOMENT, secure)):
        how = "TLS 1.3" if secure else "plain text"
        return Finding("line", f"{reached.address} answers in {time.monotonic() - began:.2f} s, {how}")
    error = asyncio.run(why_silent(reached.address, MOMENT, secure))
    if error is not None and (cause := cause_of(error.details() or "")) is not None:
        hint = HINTS[cause]
        return Finding("line", f"no connection to {reached.address}: {cause.value}", hint)
    silent = f"{reached.address} does not answer within {MOMENT:.0f} s"
    return Finding(
        "line",
        silent if error is None else error_of(error, reached.address).message,
        "check that the server is running, and that no firewall is between",
    )


def _clock(reached: Endpoint) -> Finding:
    """This device's clock beside that of the server, which its joining port tells."""
    if reached.identity is None:
        return Finding("clock", "not compared: only a device that has joined can ask")
    ahead = time.time() - asyncio.run(_server_clock(reached))
    text = f"{span(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} the server's"
    return Finding(
        "clock", text, "" if abs(ahead) <= AHEAD else "set this device's clock, for example by NTP"
    )


async def _server_clock(reached: Endpoint) -> float:
    from fedclient.identity.rpc import enrollment

    assert reached.identity is not None
    async with enrollment(reached.identity.joining_port) as port:
        return (await port.challenge()).clock
