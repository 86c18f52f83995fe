"""Command-line options that several verbs share."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from fedclient.config import read
from shoal.shell.console import Console, Result

PATH = click.Path(path_type=Path)

FLAGS: dict[str, Mapping[str, Any]] = {
    "server": {"metavar": "HOST:PORT", "help": "Address of the server.  [default: from the identity]"},
    "insecure_loopback": {
        "is_flag": True,
        "default": None,
        "help": "Use plain text, without an identity, to a server on this machine.",
    },
    "device": {
        "metavar": "NAME",
        "help": "Name of this device, kept from its first use.  [default: generated]",
    },
    "state": {"type": PATH, "metavar": "FOLDER", "help": "Folder of this device.  [default: state]"},
}
"""Options that override the settings file, by the name of the setting."""
CALLING = tuple(FLAGS)


def configured(
    *names: str, one_round: Callable[[Mapping[str, Any]], Sequence[str]] = lambda options: ()
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Add --config and the `FLAGS` of these names; the function gets the ClientConfig that they make.

    On a device that updates itself, it is that of the release that runs there. one_round: see
    `fedclient.software.launching.launch`; it gets the other options.
    """

    def add(function: Callable[..., Result]) -> Callable[..., Result]:
        @click.pass_obj
        @functools.wraps(function)
        def wrapper(console: Console, /, path: Path | None, **options: Any) -> Result:
            flags = {name: options.pop(name) for name in names}
            settings = read(path, flags)
            if settings.updates is not None:
                from fedclient.software.launching import launch

                launch(settings, path, console, one_round(options))
            return function(settings, **options)

        found: Callable[..., Result] = wrapper
        for name in reversed(names):
            found = click.option(f"--{name.replace('_', '-')}", name, **FLAGS[name])(found)
        config = click.option(
            *("-c", "--config", "path"),
            type=PATH,
            metavar="FILE",
            envvar="FEDCLIENT_CONFIG",
            show_envvar=True,
            help="Settings file (YAML).",
        )
        return config(found)

    return add


def own_options() -> str:
    """The options by which other verbs find this device, as they were given to this one."""
    given = click.get_current_context().params
    state = f" --state {given['state']}" if given["state"] is not None else ""
    return f" --config {given['path'] or 'device.yaml'}{state}"


def give_up_after(default: str) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Add --give-up-after, None unless it was given. default: what help says of that case."""
    return click.option(
        "--give-up-after",
        type=click.FloatRange(min=0.0),
        metavar="SECONDS",
        help=f"Give up after the server has been unreachable this long.  [default: {default}]",
    )
