"""`fedserver migrate-store`: from the state folder to a PostgreSQL database, and back."""

from dataclasses import asdict
from pathlib import Path

import click

from fedserver.cli.options import state_option
from shoal.core.errors import ConfigError
from shoal.shell.console import Console, Result, verb


@click.command(
    "migrate-store",
    epilog="Example: fedserver migrate-store --state server --database postgresql://shoal@db/shoal "
    "--blobs /srv/shoal",
)
@verb
@click.pass_obj
@state_option
@click.option(
    "--database", metavar="URL", help="Move to this PostgreSQL database: postgresql://USER@HOST/NAME."
)
@click.option(
    "--blobs",
    metavar="DIR|S3",
    help="The folder or the bucket (s3://BUCKET/PREFIX) for blobs, which all servers must reach.",
)
@click.option("--to-folder", is_flag=True, help="Move from the database in the settings to the state folder.")
def migrate_store(
    console: Console, state: Path, database: str | None, blobs: str | None, to_folder: bool
) -> Result:
    """Move all runs, devices and models to a PostgreSQL database, or back. The server must be stopped.

    The settings in DIR/fedserver.yaml are changed at the end, and what the server had before stays beside as
    DIR/shoal.db.moved. The command can be repeated if it was interrupted. Keys and certificates stay in the
    state folder. Put the password of the database into ~/.pgpass or into PGPASSWORD, not into the address,
    and the keys of the bucket into ~/.aws/credentials or into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
    """
    from fedserver.config import SETTINGS, read_server
    from fedserver.ha import migration
    from fedserver.store.engines import Elsewhere, place

    if to_folder == bool(database) or bool(database) != bool(blobs):
        raise click.UsageError("give --database and --blobs, or --to-folder")
    present = read_server({"state": state})
    settings = state.absolute() / SETTINGS
    if database and blobs:
        if present.elsewhere is not None:
            raise ConfigError(
                "this server's store is in a database already", "move it back first, with --to-folder"
            )
        console.progress(f"moving the store of {state} to the database")
        moved = migration.to_database(present.state, settings, Elsewhere(database, place(blobs, Path.cwd())))
        where = "the database"
    else:
        if present.elsewhere is None:
            raise ConfigError(f"the store of {state} is in the folder already", "give --database and --blobs")
        console.progress(f"moving the store of the database to {state}")
        moved = migration.to_folder(present.state, settings, present.elsewhere)
        where = str(state)
    what = f"{moved.rows} rows and {moved.blobs} blobs of {moved.size / 1e6:.1f} MB"
    return Result(
        {"state": str(state), **asdict(moved)}, f"{what} are in {where}\nnext: fedserver up --state {state}"
    )
