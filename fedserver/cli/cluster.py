"""`fedserver cluster ...`: the models of a run by cluster, and the way back to earlier ones."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from fedserver.cli import text
from fedserver.cli.options import connected
from shoal.shell.console import Console, Result, verb

if TYPE_CHECKING:
    from fedserver.rpc.client import OperatorClient


@click.group()
def cluster() -> None:
    """The clusters of a run: their models, and the way back to earlier ones."""


@cluster.command("ls", epilog="Example: fedserver cluster ls digits")
@verb
@connected
@click.argument("name", metavar="RUN")
def ls(console: Console, client: "OperatorClient", name: str) -> Result:
    """The clusters of a run, and the models with which its last rounds opened.

    The last version is the current one. A round of the list can be given to: fedserver cluster rollback
    """
    found = client.clusters(name)
    return Result({"run": name, "clusters": list(map(asdict, found))}, text.clusters(found))


@cluster.command(epilog="Example: fedserver cluster rollback digits --to-round 7 --cluster c0")
@verb
@connected
@click.argument("name", metavar="RUN")
@click.option(
    "--to-round", type=click.IntRange(min=1), required=True, metavar="N", help="How far to go back."
)
@click.option("--cluster", "key", default="", metavar="KEY", help="Whose model alone.  [default: all]")
def rollback(console: Console, client: "OperatorClient", name: str, to_round: int, key: str) -> Result:
    """Go on with the models that round N opened with.

    Without --cluster the whole run goes back to what it was then: its models, its clusters and its progress;
    what came after is done again. With --cluster that model alone is replaced, and everything else stays.

    A round that is open is abandoned and planned again: reports that still come for it do not count. A run
    that is over stays over, and its models are the earlier ones. Going back takes a round's number of its
    own, so it can be undone in the same way.
    """
    status = client.roll_back(name, to_round, key)
    what = f"the model of {key}" if key else "the run"
    return Result(
        text.data(status),
        f"{what} is as it was when round {to_round} opened\n{text.summary(status.summary)}",
    )
