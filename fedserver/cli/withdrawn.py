"""What `fedserver device withdraw` says: where a device is, what it takes to change that, and what stays."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fedserver.cli.text import table
from fedserver.coordinator.answers import ROOM
from fedserver.coordinator.status_types import WithdrawnRun
from shoal.core.texts import plural

if TYPE_CHECKING:
    from fedserver.authority.answers import Withdrawn

STAYS = (
    "what stays: its name in logs, the audit log and signed cards; what it has paid; models that others have "
    "fetched; backups, so withdraw it again after a restore"
)


def shown(found: "Withdrawn", done: bool) -> str:
    """All of it, as text. done: whether it was withdrawn by this call."""
    device = found.device.device
    said = (
        f"device {device} is withdrawn; calls cut: {found.cut}"
        if done
        else f"device {device}: nothing is done"
    )
    if not found.runs:
        return f"{said}; no model contains it\n{STAYS}"
    lines = [
        said,
        table(("run", "with it", "without it", "to make all without it"), list(map(_run, found.runs))),
    ]
    if found.releases:
        rows = [
            (each.release, _models(each.with_it), _models(each.without_it), ", ".join(each.channels) or "-")
            for each in found.releases
        ]
        lines.append(table(("release", "with it", "without it", "channels"), rows))
    lines += [
        f"newcomers of {each.run} are placed by data of {device} as well"
        for each in found.runs
        if each.grouped
    ]
    lines += [
        f"{each.run}: {each.unknown}; what is unknown counts as with it"
        for each in found.runs
        if each.unknown
    ]
    if any(each.with_it and each.channels for each in found.releases):
        lines.append("a channel keeps its release until another is used: fedserver release use")
    if any(each.with_it and each.epsilon and not each.replayed for each in found.runs):
        lines.append(f"what they have paid before stays paid, and {ROOM}: who has none left takes no part")
    if not done:
        replay = "".join(f" --replay {each.run}" for each in found.runs if each.back_to)
        lines.append(f"do it with: fedserver device withdraw {device} --yes{replay}")
    return "\n".join([*lines, STAYS])


def _run(each: WithdrawnRun) -> tuple[str, str, str, str]:
    return each.run, _models(each.with_it), _models(each.without_it), _price(each)


def _models(keys: Iterable[str]) -> str:
    return ", ".join(sorted(keys)) or "-"


def _price(each: WithdrawnRun) -> str:
    if each.replayed:
        return "it went back, and goes on"
    if not each.with_it:
        return "nothing"
    how = f"no stored version lacks it: fedserver run start --like {each.run}"
    if each.inherited:
        how = f"again, with what {each.inherited} makes without it: fedserver run start"
    elif each.back_to:
        how = f"--replay {each.run}, from before round {each.back_to}"
    pays = f"each pays at most epsilon {each.epsilon:g}" if each.epsilon else "at no epsilon"
    if math.isinf(each.epsilon):
        pays = "each pays for training by its samples"
    return f"{plural(each.rounds, 'round')}, {plural(each.devices, 'other device')}, {pays}: {how}"
