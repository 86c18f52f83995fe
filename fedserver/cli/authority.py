"""`fedserver authority ...`: the certificate authorities, and the change from one to the next."""

from typing import TYPE_CHECKING, Any

import click

from fedserver.cli.device import fingerprint
from fedserver.cli.options import connected
from fedserver.cli.text import clock, table
from shoal.shell.console import Console, Result, verb

if TYPE_CHECKING:
    from fedserver.authority.authority_api import Root
    from fedserver.rpc.authority_client import AuthorityClient

FORCE = "Also if devices are left behind; they can rejoin with their last key."


@click.group()
def authority() -> None:
    """The certificate authorities that this server and its devices trust.

    \b
    To change from one to the next, without a restart:
      fedserver authority add          the new one is trusted; devices are told when they renew
      fedserver authority ls           whom it still has to reach
      fedserver authority use NAME     the new one signs
      fedserver authority drop NAME    the old one ends, once nobody uses it
    """


@authority.command("ls", epilog="Example: fedserver authority ls")
@verb
@connected
def list_(console: Console, client: "AuthorityClient") -> Result:
    """The authorities that are trusted, oldest first."""
    found = client.roots()
    rows = [
        (
            root.name,
            "yes" if root.signs else "no",
            clock(root.expires),
            str(root.certificates),
            ", ".join(root.untold) or "-",
        )
        for root in found
    ]
    text = table(("authority", "signs", "until", "certificates", "devices that do not know it"), rows)
    return Result({"authorities": list(map(facts, found))}, text)


@authority.command(epilog="Example: fedserver authority add")
@verb
@connected
def add(console: Console, client: "AuthorityClient") -> Result:
    """Make one more authority. From now on it is trusted; devices are told of it when they renew."""
    root = client.add_root()
    return Result(facts(root), f"authority {root.name} is trusted; its key: {fingerprint(root.pin.hex())}")


@authority.command(epilog="Example: fedserver authority use 3f9a1c22")
@verb
@connected
@click.argument("name", metavar="AUTHORITY")
@click.option("--force", is_flag=True, help=FORCE)
def use(console: Console, client: "AuthorityClient", name: str, force: bool) -> Result:
    """Let an authority sign, the server's own certificate too.

    Refused while there are approved devices, seen within 90 days, that do not know it yet.
    """
    root = client.use_root(name, force)
    return Result(facts(root), f"authority {name} signs from now on")


@authority.command(epilog="Example: fedserver authority drop 3f9a1c22")
@verb
@connected
@click.argument("name", metavar="AUTHORITY")
@click.option("--force", is_flag=True, help=FORCE)
def drop(console: Console, client: "AuthorityClient", name: str, force: bool) -> Result:
    """End an authority that does not sign; its key is deleted. Refused while devices use its certificates."""
    client.drop_root(name, force)
    return Result({"authority": name}, f"authority {name} has ended")


def facts(root: "Root") -> dict[str, Any]:
    """For programs."""
    return {
        "authority": root.name,
        "fingerprint": root.pin.hex(),
        "signs": root.signs,
        "expires": root.expires,
        "certificates": root.certificates,
        "untold": list(root.untold),
    }
