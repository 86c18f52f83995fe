"""`fedserver demo`: the whole system on this machine, with every part in a process of its own."""

import importlib.util
from pathlib import Path

import click

from shoal.shell.console import Console, Result, verb


@click.command(epilog="Example: fedserver demo --directory runs/demo")
@verb
@click.pass_obj
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    default=Path("runs/demo"),
    show_default=True,
    help="Where everything goes: states, logs, models and summary.json. The folder is emptied first.",
)
@click.option("--page", is_flag=True, help="Also serve the live page, and leave it up until Ctrl-C.")
def demo(console: Console, directory: Path, page: bool) -> Result:
    """Run one server, eight training devices and two unlabeled newcomers on this machine.

    The data are real images of digits, turned by four angles; the server does not know which device has which
    angle. Each device joins with a key of its own, and all calls go over TLS with certificates on both sides.
    """
    from shoal.demo.processes import play
    from shoal.demo.summary import table_of

    summary = play(directory, console, page)
    written = [directory / "summary.json"]
    if importlib.util.find_spec("matplotlib"):
        from shoal.demo.picture import draw

        written.append(directory / "demo.png")
        draw(summary, written[-1])
    return Result(summary, f"{table_of(summary)}\n\nWritten to {' and '.join(map(str, written))}")
