"""What a device did last, out of its folder, and whether its server answers."""

import asyncio
import time
from typing import Any

from fedclient.config import ClientConfig, address
from fedclient.enroll import PLACEMENT
from fedclient.state import STATUS, DeviceFolder, Outbox, read_json
from fedcore.errors import ConfigError
from fedcore.patience import MOMENT

TASK = ("run", "round", "title", "outcome")


def status(settings: ClientConfig) -> dict[str, Any]:
    """For machines. running: an agent works in this folder now. at: when it wrote last, Unix seconds."""
    folder = DeviceFolder(settings.state)
    last, placement = read_json(folder.root / STATUS), read_json(folder.model / PLACEMENT)
    server = settings.server or last.get("server")
    return {
        "device": folder.known_device() or settings.device,
        "state": str(folder.root),
        "server": server,
        "answers": _answers(settings),
        "running": folder.busy(),
        "doing": last.get("doing"),
        "at": last.get("at"),
        "last_task": {key: last.get(key) for key in TASK} if last.get("run") else None,
        "tasks": last.get("tasks", 0),
        "cluster": last.get("cluster") or placement.get("cluster"),
        "enrolled": placement or None,
        "outbox": Outbox(folder.outbox).pending() is not None,
        "last_error": last.get("error") or None,
    }


def _answers(settings: ClientConfig) -> bool | None:
    """None where no server may be asked."""
    try:
        server = address(settings)
    except ConfigError:
        return None
    from fedclient.rpc import answers

    return asyncio.run(answers(server, MOMENT))


def text(found: dict[str, Any]) -> str:
    """The same for people."""
    answer = {None: "not asked: see `insecure_loopback`", True: "answers", False: "does not answer"}
    task, error = found["last_task"], found["last_error"]
    seen = time.strftime(" (%Y-%m-%d %H:%M:%S)", time.localtime(found["at"])) if found["at"] else ""
    doing = f"{found['doing']}{seen}" if found["doing"] else "has never run here"
    lines = {
        "device": found["device"] or "has no name yet",
        "server": f"{found['server']}: {answer[found['answers']]}" if found["server"] else "none is set",
        "agent": doing if found["running"] else f"not running; last: {doing}",
        "last task": ", ".join(f"{key} {task[key]}" for key in TASK if task[key]) if task else "none",
        "cluster": found["cluster"] or "none",
        "outbox": "a result waits for the server" if found["outbox"] else "empty",
        "last error": f"[{error.get('code')}] {error.get('message')}" if error else "none",
    }
    return "\n".join(f"{name + ':':<12}{value}" for name, value in lines.items())
