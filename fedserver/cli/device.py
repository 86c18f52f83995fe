"""`fedserver device ...`: the devices that have joined."""

import sys
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import click

from fedserver.cli.options import connected
from fedserver.cli.runs.placements import listed
from fedserver.cli.text import ago, clock, plain, table
from fedserver.cli.withdrawn import shown
from shoal.core.errors import NotFound, near
from shoal.shell.console import Group, Result, confirm, printable, verb

if TYPE_CHECKING:
    from fedserver.authority.answers import Known
    from fedserver.rpc.client import OperatorClient
    from fedserver.store.identities.records import Successor


@click.group(cls=Group)
def device() -> None:
    """List, approve, revoke and withdraw devices."""


@device.command("ls", epilog="Example: fedserver device ls --json")
@verb
@connected
def list_(client: "OperatorClient") -> Result:
    """List every device that has ever joined, by name, with the fingerprint of its key.

    A key that waits to take the place of another has a line of its own.
    """
    found, rows = client.devices(), []
    for known in found:
        state, seen = known.standing.value, ago(known.last_seen)
        rows.append((known.device, known.role.value, state, seen, _labels(known), fingerprint(known.spki)))
        if (other := known.successor) is not None:
            key = fingerprint(other.spki)
            rows.append((known.device, other.role.value, "waits to replace it", "-", _labels(other), key))
    text = table(("device", "role", "state", "last seen", "labels", "key"), rows)
    none = "no device has joined yet; create a join string with: fedserver token create"
    return Result({"devices": list(map(plain, found))}, text if found else none)


@device.command(epilog="Example: fedserver device show ward-3")
@verb
@connected
@click.argument("name", metavar="DEVICE")
def show(client: "OperatorClient", name: str) -> Result:
    """Show a device: its state, its key's fingerprint, and which models it was given."""
    known, found = _find(client, name), list(client.placements(device=name))
    placements = f"\nmodels that it was given\n{listed(found, of_device=True)}" if found else ""
    return Result({**plain(known), "placements": list(map(vars, found))}, _text(known) + placements)


@device.command(epilog="Examples: fedserver device approve ward-3; fedserver device approve 'ward-*'")
@verb
@connected
@click.argument("name", metavar="[DEVICE]", required=False, default="")
@click.option("--all", "every", is_flag=True, help="Approve every device that waits.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def approve(client: "OperatorClient", name: str, every: bool, yes: bool) -> Result:
    """Approve a device that waits, or several: with --all, or with a pattern for their names.

    First compare the fingerprints of their keys: `fedserver device ls` must print the same one as the device.
    Where a device has another key already, as before it was installed again, that one is revoked in the same
    moment; what has been paid under this name, as far as this server knows, is shown, and you are asked, as
    you are for several devices.
    """
    if every == bool(name):
        raise click.UsageError("name a device or a pattern, or give --all")
    exact = bool(name) and not set(name) & set("*?[")
    devices = [_find(client, name)] if exact else client.devices()
    waiting = [each for each in devices if each.waits and fnmatchcase(each.device, name or "*")]
    if exact and (not waiting or waiting[0].successor is None):
        known = client.approve(name)
        return Result(plain(known), f"device {name} is approved; its key: {fingerprint(known.spki)}")
    if not waiting:
        raise NotFound(f"no device waits for approval{f' whose name fits {name!r}' if name else ''}")
    listed = _waiting(client, waiting)
    if not yes:
        click.echo(printable(listed), err=True)
        confirm(f"approve {'it' if len(waiting) == 1 else f'these {len(waiting)}'}?")
    approved = [client.approve(each.device, each.waiting_key) for each in waiting]
    many = "1 device is" if len(approved) == 1 else f"{len(approved)} devices are"
    said = f"{listed}\n{many} approved" if yes else f"{many} approved"
    return Result({"devices": list(map(plain, approved))}, said)


def _waiting(client: "OperatorClient", devices: "list[Known]") -> str:
    """The keys that wait, and what has been paid under the names of those that they replace."""
    paid = client.status().released if any(each.successor for each in devices) else {}
    rows, before = [], []
    for each in devices:
        asked = each.successor or each
        rows.append(
            (each.device, asked.role.value, fingerprint(asked.spki), clock(asked.created), asked.token or "-")
        )
        if each.successor:
            released = paid.get(each.device, "nothing that this server knows of")
            before.append(f"{each.device} had the key {each.spki[:8]}, and has paid: {released}")
    return "\n".join([table(("device", "role", "key", "asks since", "with token"), rows), *before])


@device.command(epilog="Example: fedserver device revoke ward-3 --reason stolen")
@verb
@connected
@click.argument("name", metavar="DEVICE")
@click.option("--reason", default="", metavar="TEXT", help="Reason, for the logs.")
@click.option("--waiting", is_flag=True, help="Only the key that waits to take the place of its key.")
def revoke(client: "OperatorClient", name: str, reason: str, waiting: bool) -> Result:
    """Revoke a device and its key for good: its open calls are cut, and its next call is refused.

    Prints the latest rounds in which its updates count, also of runs that are over; the runs' logs have them
    too. If it joins again under this name, with a new key, you have to approve it.
    """
    ended = client.revoke(name, reason, waiting)
    if waiting:
        return Result(plain(ended.device), f"device {name} keeps the key that it has")
    counted = [{"run": run, "round": number} for run, number in ended.counted]
    by_run: dict[str, list[int]] = {}
    for run, number in ended.counted:
        by_run.setdefault(run, []).append(number)
    listed = "; ".join(f"{run}, rounds {spans(numbers)}" for run, numbers in by_run.items()) or "none known"
    text = f"device {name} is revoked; calls cut: {ended.cut}; its updates that count: {listed}"
    return Result({**plain(ended.device), "cut": ended.cut, "counted": counted}, text)


@device.command(epilog="Example: fedserver device withdraw ward-3 --replay digits")
@verb
@connected
@click.argument("name", metavar="DEVICE")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--replay", multiple=True, metavar="RUN", help="Go back to this run's models without it, and go on."
)
@click.option("--reason", default="", metavar="TEXT", help="Reason, for the logs.")
def withdraw(client: "OperatorClient", name: str, yes: bool, replay: tuple[str, ...], reason: str) -> Result:
    """Let the data of a device count no more: shows what that takes, and asks whether to do it.

    Shows which models of each run and release contain the device, and what it costs to make them without it.
    Then the device is revoked, its name is kept from any other, its reports, descriptions and figures are
    deleted, and releases with it are marked. Models without it keep their bits. Those with it stay in use
    until their run goes on without it, with --replay, or another release is used.

    In a script, and with --json, no one is asked, and without --yes nothing is done.
    """
    done = client.withdraw(name, reason, yes, replay)
    if not yes and sys.stdin.isatty() and not click.get_current_context().params.get("as_json"):
        click.echo(printable(shown(done, False)), err=True)
        confirm(f"withdraw {name}?")
        yes, done = True, client.withdraw(name, reason, True, replay)
    data = {**plain(done), **plain(done.device)}
    return Result(data, shown(done, yes))


def spans(numbers: Iterable[int]) -> str:
    """Numbers, with those that follow each other as one span.

    Example:
        >>> spans([1, 2, 3, 7, 9, 8])
        '1-3, 7-9'
    """
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ", ".join("-".join(map(str, each)) for each in found)


def _labels(found: "Known | Successor") -> str:
    return ", ".join(f"{name}={value}" for name, value in found.labels.items()) or "-"


def fingerprint(digest: str) -> str:
    """A fingerprint in groups of four digits, in the form in which the device shows it."""
    return " ".join(digest[start : start + 4] for start in range(0, len(digest), 4))


def _text(known: "Known") -> str:
    waits = f"; compare the key with what the device shows, then run: fedserver device approve {known.device}"
    lines = [
        f"{known.device}: {known.role.value}, {known.standing.value}{waits if known.waits else ''}",
        f"key       {fingerprint(known.spki)}",
        f"joined    {clock(known.created)}{f' with token {known.token}' if known.token else ''}",
        f"last seen {ago(known.last_seen)}",
    ]
    if known.successor is not None:
        lines.append(f"waits     {fingerprint(known.successor.spki)}, to take the place of its key")
    return "\n".join(lines)


def _find(client: "OperatorClient", name: str) -> "Known":
    found = {known.device: known for known in client.devices()}
    if name not in found:
        raise NotFound(f"no device {name!r} has joined", near(name, list(found)) if found else "")
    return found[name]
