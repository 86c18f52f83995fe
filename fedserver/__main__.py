"""The command line of the server: each verb in a module of its own.

What a verb needs is imported when it is used, so that `--help` is fast and the daemon does not load PyTorch.
"""

from importlib.metadata import entry_points
from typing import ClassVar

import click

from shoal import __version__
from shoal.shell.console import Commands


class Verbs(Commands):
    """The last two verbs run in the operator's shell and never inside the daemon.

    Another distribution may bring verbs, as entry points of the group `fedserver.verbs`: a name, and the
    module that defines it. They go before ours of the same name.
    """

    modules: ClassVar = {
        "init": "fedserver.cli.server",
        "up": "fedserver.cli.server",
        "token": "fedserver.cli.trust.token",
        "device": "fedserver.cli.device",
        "authority": "fedserver.cli.trust.authority",
        "operator": "fedserver.cli.trust.operator",
        "audit": "fedserver.cli.trust.audit",
        "run": "fedserver.cli.runs.run",
        "release": "fedserver.cli.runs.release",
        "algorithm": "fedserver.cli.algorithm",
        "status": "fedserver.cli.server",
        "model": "fedserver.cli.models.model",
        "page": "fedserver.cli.page",
        "migrate-store": "fedserver.cli.store",
        "backup": "fedserver.cli.backup",
        "restore": "fedserver.cli.backup",
        "recover": "fedserver.cli.backup",
        "completion": "shoal.shell.completion",
        "conformance": "fedserver.cli.conformance",
        "simulate": "shoal.simulation.verb",
        "demo": "shoal.demo.verb",
        **{point.name: point.value for point in entry_points(group="fedserver.verbs")},
    }


@click.group(cls=Verbs)
@click.version_option(__version__, prog_name="fedserver")
def main() -> None:
    """The Shoal server: it finds out which devices have similar data, and trains a model for each group.

    \b
    Exit codes:
      0    success
      1    not found, the run failed, or the audit log is broken
      2    wrong command line
      3    wrong settings
      4    no server is running, it does not answer, or the state folder is in use
      5    refused
      6    timed out
      7    the other side speaks another version
      8    the disk, the data, the learner or a device is at fault
      70   a bug in Shoal
      130  interrupted by Ctrl-C
    """


if __name__ == "__main__":
    main()
