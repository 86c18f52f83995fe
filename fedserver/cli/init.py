"""`fedserver init`: what a server needs before devices can trust it, and it them."""

from dataclasses import asdict
from pathlib import Path

import click

from fedserver.cli.options import state_option
from shoal.shell.console import Console, Result, verb


@click.command(epilog="Example: fedserver init --state server --host shoal.example.org --host 192.168.1.10")
@verb
@state_option("The server's folder, which is made.")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A name or address of this machine; devices are told to call the first. Repeatable.",
)
@click.option("--listen", metavar="HOST:PORT", help="Where devices call.  [default: 0.0.0.0:50051]")
@click.option("--enroll", metavar="HOST:PORT", help="Where devices join.  [default: 0.0.0.0:50052]")
@click.option(
    "--name", default="shoal", show_default=True, help="The federation's name, part of every certificate."
)
def init(
    console: Console,
    state: Path,
    hosts: tuple[str, ...],
    listen: str | None,
    enroll: str | None,
    name: str,
) -> Result:
    """Make the certificate authority, the server's certificates and its settings.

    Safe to repeat: what is there stays as it is, what a crash left unmade is made, and so is what was lost of
    DIR/authority, the root's own key apart. Where every --host is this machine itself, only this machine is
    listened to. The keys are in DIR/authority, for this user alone: back them up.
    """
    from fedserver.authority import setup

    made = setup.init(state.absolute(), hosts, listen, enroll, name)
    what = f"made {', '.join(made.made)}" if made.made else "everything was there; nothing was changed"
    stays = f"\nthe hosts stay as they are: change them in {state}/fedserver.yaml, then start it anew"
    text = (
        f"{state}: federation {made.federation}, for {', '.join(made.hosts)}; {what}"
        f"{stays if hosts and hosts != made.hosts else ''}\n"
        f"next:\n  fedserver up --state {state}\n  fedserver token create --state {state}"
    )
    return Result({"state": str(state), **asdict(made)}, text)
