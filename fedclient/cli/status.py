"""`fedclient status`: what a device did last, from its folder, and whether its server answers."""

import asyncio
import time
from dataclasses import asdict
from typing import Any

import click

from fedclient.cli.options import configured
from fedclient.config import ClientConfig
from fedclient.identity.connection import Endpoint, endpoint
from fedclient.store import privacy_report
from fedclient.store.findings import Findings, findings_in, line
from fedclient.store.state import PLACEMENT, STATUS, DeviceFolder, Outbox, read_json
from shoal import __version__
from shoal.core.data.from_json import value_of
from shoal.core.engine.timeouts import MOMENT
from shoal.core.errors import ShoalError
from shoal.shell.console import Result, one_line, verb

TASK = ("run", "round", "title", "outcome")


@click.command(epilog="Example: fedclient status --config device.yaml --json")
@verb
@configured("server", "insecure_loopback", "state")
def status(settings: ClientConfig) -> Result:
    """Show what this device did last, and whether its server answers."""
    found = facts(settings)
    return Result(found, text(found))


def facts(settings: ClientConfig) -> dict[str, Any]:
    """For programs. running: whether an agent works in this folder now. at: when it last wrote its status,
    in Unix seconds."""
    folder, watched = DeviceFolder(settings.state), findings_in(settings.state)
    last, placement = read_json(folder.root / STATUS), read_json(folder.model / PLACEMENT)
    try:
        reached, trouble = endpoint(settings), ""
    except ShoalError as error:
        reached, trouble = Endpoint(None, None, None), str(error)
    return {
        "device": reached.device or folder.known_device() or settings.device,
        "state": str(folder.root),
        "software": _software(settings),
        "identity": reached.identity.facts() if reached.identity else None,
        "trouble": trouble or None,
        "server": reached.address or settings.server or last.get("server"),
        "answers": _answers(reached),
        "running": folder.busy(),
        "doing": last.get("doing"),
        "at": last.get("at"),
        "last_task": {key: last.get(key) for key in TASK} if last.get("run") else None,
        "tasks": last.get("tasks", 0),
        "cluster": last.get("cluster") or placement.get("cluster"),
        "placed": placement or None,
        "watch": asdict(watched) if watched.subject else None,
        "privacy": privacy_report.summary(settings),
        "outbox": Outbox(folder.outbox).pending() is not None,
        "last_error": last.get("error") or None,
    }


def _software(settings: ClientConfig) -> dict[str, Any]:
    """version: of this command. trial: what is to be tried, or None. failed: what is not, and why."""
    if settings.updates is None:
        return {"version": __version__, "updates": False, "trial": None, "failed": {}}
    from fedclient.software.folder import standing_of

    standing = standing_of(settings)
    return {
        "version": __version__,
        "updates": True,
        "trial": standing.trial or None,
        "failed": dict(standing.failed),
    }


def _answers(reached: Endpoint) -> bool | None:
    """None if there is no server to ask."""
    if not reached.address:
        return None
    from fedclient.identity.rpc import credentials
    from fedclient.net.rpc import answers

    return asyncio.run(
        answers(reached.address, MOMENT, credentials(reached.identity) if reached.identity else None)
    )


def _versions(software: dict[str, Any]) -> str:
    said = [software["version"], "updates itself" if software["updates"] else "updated by hand"]
    said += [f"{software['trial']} is on trial"] if software["trial"] else []
    return ", ".join(said) + "".join(
        f"; {version} failed: {why}" for version, why in software["failed"].items()
    )


def _last(error: dict[str, str]) -> str:
    """When it was, too: it may be over long since."""
    when = f" ({error['when']})" if error.get("when") else ""
    return f"[{error.get('code')}] {error.get('message')}{when}"


def text(found: dict[str, Any]) -> str:
    """The same, for people."""
    answer = {None: "not asked", True: "answers", False: "does not answer"}
    task, error, identity = found["last_task"], found["last_error"], found["identity"]
    seen = time.strftime(" (%Y-%m-%d %H:%M:%S)", time.localtime(found["at"])) if found["at"] else ""
    doing = f"{found['doing']}{seen}" if found["doing"] else "has never run here"
    known = (
        f"{identity['role']} in federation {identity['federation']}"
        if identity
        else found["trouble"] or "none: plain text"
    )
    lines = {
        # First, as it may be that the owner is asked.
        "agent": doing if found["running"] else f"not running; last: {doing}",
        "device": found["device"] or "has no name yet",
        "identity": known,
        **({"fingerprint": identity["fingerprint"]} if identity else {}),
        "server": f"{found['server']}: {answer[found['answers']]}" if found["server"] else "none is set",
        "software": _versions(found["software"]),
        "last task": ", ".join(f"{key} {task[key]}" for key in TASK if task[key]) if task else "none",
        "cluster": found["cluster"] or "none",
        "data": line(value_of(Findings, found["watch"])) if found["watch"] else "not watched",
        "privacy": privacy_report.line(found["privacy"]),
        "outbox": "a result is waiting for the server" if found["outbox"] else "empty",
        "last error": _last(error) if error else "none",
    }
    shown = [f"{name + ':':<13}{one_line(value)}" for name, value in lines.items()]
    details = (error or {}).get("details", "").splitlines()
    return "\n".join([*shown, *(f"  | {line}" for line in details)])
