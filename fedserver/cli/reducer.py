"""`fedserver reducer up`: a process that combines reports of large models for servers on other machines."""

import logging
import signal
import sys
import threading
from pathlib import Path

import click

from fedserver.cli.options import PATH
from shoal.core.errors import ConfigError
from shoal.shell.console import Console, Group, Result, verb


@click.group(cls=Group)
def reducer() -> None:
    """Let other machines combine the reports of large models.

    Reducers are for servers whose store is in PostgreSQL and in a bucket or a shared folder (see
    `fedserver migrate-store`). They take work from the database, and the server that leads uses as many as
    there are. Models have the same bits with any number of them.
    """


@reducer.command(
    epilog="Example: fedserver reducer up --database postgresql://shoal_reducer@db/shoal "
    "--blobs s3://shoal-models/fleet"
)
@verb
@click.option(
    "-c",
    "--config",
    "path",
    type=PATH,
    metavar="FILE",
    help="Settings file of a server (YAML), of which only `database` and `blobs` are used.",
)
@click.option("--database", metavar="URL", help="The database of the servers: postgresql://USER@HOST/NAME.")
@click.option(
    "--blobs",
    metavar="DIR|S3",
    help="The folder or the bucket (s3://BUCKET/PREFIX) for blobs of the servers; it is only read.",
)
def up(console: Console, path: Path | None, database: str | None, blobs: str | None) -> Result:
    """Run a reducer until SIGTERM or Ctrl-C. It uses one processor: start one for each that you can spare.

    It keeps nothing on the disk and needs no certificate. A reducer can be killed at any time: another one,
    or the server, does its work. But servers believe what it computes, apart from samples that they compare:
    trust its machine like the server's.
    """
    from fedserver.config import ServerConfig, read_server
    from fedserver.store.engines import Elsewhere, place
    from fedserver.telemetry.logs import Bounded, Printable
    from shoal.shell.memory import share_arenas

    config = read_server(path, {}) if path else ServerConfig()
    elsewhere = config.elsewhere
    if database or blobs:
        url, where = database or config.database, blobs or config.blobs
        elsewhere = Elsewhere(url, place(where, Path.cwd())) if url and where else None
    if elsewhere is None:
        raise ConfigError(
            "a reducer needs a database and a place of blobs",
            "give --database and --blobs, or --config with the settings of a server that has both",
        )
    try:
        from fedserver.coordinator.aggregation.reducer import Reducer
    except ModuleNotFoundError:
        raise ConfigError(
            "the package psycopg is not installed, which a PostgreSQL database needs",
            "install it with: pip install 'shoal-fed[server,postgres]'",
        ) from None
    share_arenas()
    log = logging.StreamHandler(sys.stderr)
    log.setFormatter(Printable("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    log.addFilter(Bounded())
    logging.basicConfig(handlers=[log], level=logging.INFO)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    running = Reducer(elsewhere, stop)

    def announce() -> None:
        click.echo(f"waiting for jobs as {running.name}")
        sys.stdout.flush()

    try:
        running.serve(announce)
    finally:
        running.close()
    return Result({"name": running.name}, "stopped")
