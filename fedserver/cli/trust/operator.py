"""`fedserver operator ...`: the people who may call the server over the network."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedserver.cli.options import PATH, connected
from fedserver.cli.text import clock, plain, table
from fedserver.store.identities.records import Operator
from shoal.core.errors import Taken
from shoal.core.identity.joining import OperatorRole
from shoal.shell.console import Group, Result, verb

if TYPE_CHECKING:
    from fedserver.rpc.client import OperatorClient


@click.group(cls=Group)
def operator() -> None:
    """Give people certificates with which they manage the server, or only watch it, from other machines.

    \b
    The server has to listen for them: write `operator_listen: 0.0.0.0:50053` into fedserver.yaml. Then:
      fedserver operator add anna --role viewer    on the server's machine; makes the folder anna
      fedserver status --connect anna              on Anna's machine, with a copy of that folder
    These verbs work only on the server's machine.
    """


@operator.command(epilog="Example: fedserver operator add anna --role operator --out anna")
@verb
@connected
@click.argument("name", metavar="NAME")
@click.option(
    "--role",
    type=click.Choice([role.value for role in OperatorRole]),
    default=OperatorRole.VIEWER.value,
    show_default=True,
    help="What NAME may do: see everything except models, or change things and fetch models, too.",
)
@click.option(
    "--address",
    metavar="HOST:PORT",
    help="Where NAME calls, if not at the first host of the server.",
)
@click.option("--out", type=PATH, metavar="FOLDER", help="The folder to create.  [default: NAME]")
def add(
    client: "OperatorClient",
    name: str,
    role: str,
    address: str | None,
    out: Path | None,
) -> Result:
    """Make a folder with a key and a certificate for a person.

    With it, NAME calls the server over the network (--connect FOLDER). Anyone who has the folder is NAME for
    the server: hand it over as you would hand over a password. A key that NAME has already is revoked.
    """
    from fedserver.addresses import host_and_port
    from fedserver.rpc.channel import Card, write_folder
    from shoal.core.identity.certificates import key_to_pem, new_key, request

    if address is not None:
        host_and_port("--address", address, lowest=1)
    folder = (out or Path(name)).absolute()
    if folder.exists():
        raise Taken(f"{folder} exists already", "give another --out, or remove it first")
    key = new_key()
    issued = client.add_operator(name, OperatorRole(role), request(key))
    made = issued.operator
    card = Card(made.name, made.role.value, address or issued.address)
    write_folder(folder, card, key_to_pem(key), issued.certificate, issued.authority)
    summary = (
        f"operator {made.name} may call {card.address} as {made.role.value}\n"
        f"give {made.name} the folder {folder}, and remove it here; on that machine:\n"
        f"  fedserver status --connect {folder.name}"
    )
    return Result({**facts(made), "address": card.address, "folder": str(folder)}, summary)


@operator.command("ls", epilog="Example: fedserver operator ls")
@verb
@connected
def list_(client: "OperatorClient") -> Result:
    """List the operators, by name."""
    found = client.operators()
    rows = [
        (each.name, each.role.value, "revoked" if each.revoked else "valid", clock(each.created))
        for each in found
    ]
    text = table(("operator", "role", "state", "added"), rows)
    none = "there are no operators; create one with: fedserver operator add NAME"
    return Result({"operators": list(map(facts, found))}, text if found else none)


@operator.command(epilog="Example: fedserver operator revoke anna --reason 'lost laptop'")
@verb
@connected
@click.argument("name", metavar="NAME")
@click.option("--reason", default="", metavar="TEXT", help="Why, for the audit log.")
def revoke(client: "OperatorClient", name: str, reason: str) -> Result:
    """End an operator's key and open calls, at once."""
    found, cut = client.revoke_operator(name, reason)
    return Result(
        {**facts(found), "cut": cut}, f"operator {name} is revoked; open calls that were cut: {cut}"
    )


def facts(found: Operator) -> dict[str, Any]:
    """An operator as JSON."""
    shown = plain(found)
    return {"operator": shown.pop("name"), **shown}
