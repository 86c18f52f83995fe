"""The command line of the server: each verb in a module of its own.

What a verb needs is imported when it is used, so that `--help` is quick and the daemon loads no PyTorch.
"""

import click

from fedcore import __version__
from fedcore.shell.console import Commands
from fedserver.audit_verbs import audit
from fedserver.authority_verbs import authority
from fedserver.backup_verbs import backup, recover, restore
from fedserver.cluster_verbs import cluster
from fedserver.demo import demo
from fedserver.device_verbs import device
from fedserver.init_verb import init
from fedserver.run_verbs import run
from fedserver.simulate import simulate
from fedserver.table_verb import table
from fedserver.token_verbs import token
from fedserver.up import up
from fedserver.verbs import model, status


@click.group(cls=Commands)
@click.version_option(__version__, prog_name="fedserver")
def main() -> None:
    """The server of a Shoal: it finds which devices see the same world, and trains a model for each group.

    \b
    Exit codes: 0 done; 1 a run failed or is not there; 2 wrong command line; 3 wrong settings; 4 no server;
    5 refused; 6 time is up; 8 data, learner or device at fault; 70 a bug of ours; 130 interrupted.
    """


KEEPING = (backup, restore, recover)
for command in (
    init,
    up,
    token,
    device,
    authority,
    audit,
    run,
    status,
    cluster,
    model,
    *KEEPING,
    simulate,
    table,
    demo,
):
    main.add_command(command)

if __name__ == "__main__":
    main()
