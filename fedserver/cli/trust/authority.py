"""`fedserver authority ...`: the certificate authorities, and how to replace one."""

from typing import TYPE_CHECKING, Any

import click

from fedserver.cli.device import fingerprint
from fedserver.cli.options import connected
from fedserver.cli.text import clock, table
from shoal.shell.console import Console, Group, Result, verb

if TYPE_CHECKING:
    from fedserver.authority.answers import Root
    from fedserver.rpc.client import AuthorityClient

FORCE = "Do it even if some devices are left behind; they can rejoin with their last key."


@click.group(cls=Group)
def authority() -> None:
    """Manage the certificate authorities that this server and its devices trust.

    \b
    To replace the authority without a restart:
      fedserver authority add          trust a new one; devices learn of it when they renew
      fedserver authority ls           see which devices do not know it yet
      fedserver authority use NAME     let the new one sign
      fedserver authority drop NAME    remove the old one, once no device uses it
    """


@authority.command("ls", epilog="Example: fedserver authority ls")
@verb
@connected
def list_(console: Console, client: "AuthorityClient") -> Result:
    """List the trusted authorities, oldest first."""
    found = client.roots()
    rows = [
        (
            root.name,
            "yes" if root.signs else "no",
            clock(root.expires),
            str(root.certificates),
            ", ".join(root.awaited) or "-",
        )
        for root in found
    ]
    text = table(("authority", "signs", "expires", "certificates", "devices that do not know it"), rows)
    return Result({"authorities": list(map(facts, found))}, text)


@authority.command(epilog="Example: fedserver authority add")
@verb
@connected
def add(console: Console, client: "AuthorityClient") -> Result:
    """Create another authority. It is trusted from now on; devices learn of it when they renew."""
    root = client.add_root()
    return Result(
        facts(root),
        f"authority {root.name} is trusted; fingerprint of its key: {fingerprint(root.pin.hex())}",
    )


@authority.command(epilog="Example: fedserver authority use 3f9a1c22")
@verb
@connected
@click.argument("name", metavar="AUTHORITY")
@click.option("--force", is_flag=True, help=FORCE)
def use(console: Console, client: "AuthorityClient", name: str, force: bool) -> Result:
    """Let an authority sign all new certificates, including the server's own.

    Refused while approved devices that called within the last 90 days do not know it.
    """
    root = client.use_root(name, force)
    return Result(facts(root), f"authority {name} signs all new certificates")


@authority.command(epilog="Example: fedserver authority drop 3f9a1c22")
@verb
@connected
@click.argument("name", metavar="AUTHORITY")
@click.option("--force", is_flag=True, help=FORCE)
def drop(console: Console, client: "AuthorityClient", name: str, force: bool) -> Result:
    """Remove an authority that does not sign, and delete its key.

    Refused while devices use its certificates.
    """
    client.drop_root(name, force)
    return Result({"authority": name}, f"authority {name} is removed")


def facts(root: "Root") -> dict[str, Any]:
    """An authority as JSON."""
    return {
        "authority": root.name,
        "fingerprint": root.pin.hex(),
        "signs": root.signs,
        "expires": root.expires,
        "certificates": root.certificates,
        "awaited": list(root.awaited),
    }
