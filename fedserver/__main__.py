"""The command line of the server: each verb in a module of its own.

What a verb needs is imported when it is used, so that `--help` is quick and the daemon loads no PyTorch.
"""

from typing import ClassVar

import click

from shoal import __version__
from shoal.shell.console import Commands


class Verbs(Commands):
    """The last three are experiments: they run in the operator's shell and never inside the daemon."""

    modules: ClassVar = {
        "init": "fedserver.cli.server",
        "up": "fedserver.cli.server",
        "token": "fedserver.cli.token",
        "device": "fedserver.cli.device",
        "authority": "fedserver.cli.authority",
        "audit": "fedserver.cli.audit",
        "run": "fedserver.cli.run",
        "status": "fedserver.cli.server",
        "cluster": "fedserver.cli.model",
        "model": "fedserver.cli.model",
        "backup": "fedserver.cli.backup",
        "restore": "fedserver.cli.backup",
        "recover": "fedserver.cli.backup",
        "simulate": "shoal.lab.cli.simulate",
        "table": "shoal.lab.cli.table",
        "demo": "shoal.lab.demo.command",
    }


@click.group(cls=Verbs)
@click.version_option(__version__, prog_name="fedserver")
def main() -> None:
    """The server of a Shoal: it finds which devices see the same world, and trains a model for each group.

    \b
    Exit codes: 0 done; 1 a run failed or is not there; 2 wrong command line; 3 wrong settings; 4 no server;
    5 refused; 6 time is up; 8 data, learner or device at fault; 70 a bug of ours; 130 interrupted.
    """


if __name__ == "__main__":
    main()
