"""The command line of a device: each verb in a module of its own, imported when it is used.

`status` and `--help` are quick for that reason, and need no PyTorch.
"""

import os
from typing import ClassVar

import click

from shoal import __version__
from shoal.shell.console import Commands


class Verbs(Commands):
    modules: ClassVar = {
        "new": "fedclient.cli.setup.new",
        "join": "fedclient.cli.join",
        "check": "fedclient.cli.check",
        "run": "fedclient.cli.run",
        "place": "fedclient.cli.place",
        "predict": "fedclient.cli.predict",
        "export": "fedclient.cli.export",
        "watch": "fedclient.cli.watch",
        "status": "fedclient.cli.status",
        "logs": "fedclient.cli.setup.logs",
        "ledger": "fedclient.cli.ledger",
        "consent": "fedclient.cli.consent",
        "doctor": "fedclient.cli.setup.doctor",
        "service": "fedclient.cli.setup.service",
        "leave": "fedclient.cli.setup.leave",
        "rekey": "fedclient.cli.rekey",
        "completion": "shoal.shell.completion",
    }


@click.group(cls=Verbs)
@click.version_option(__version__, prog_name="fedclient")
def main() -> None:
    """Run a Shoal device: train on data that never leave it, or get the model that fits them.

    \b
    Exit codes:
      0    success
      1    not found, or no model fits
      2    wrong command line
      3    wrong settings
      4    no server is running, it does not answer, or the folder is in use
      5    refused
      7    the other side speaks another version
      8    the data, the learner or the device is at fault
      70   a bug in Shoal
      130  interrupted by Ctrl-C
      143  stopped by SIGTERM
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's own log; we report what matters as errors


if __name__ == "__main__":
    main(prog_name="fedclient")
