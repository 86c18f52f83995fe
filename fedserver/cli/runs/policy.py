"""The options of `fedserver run start` and `run set` for the policy of a run."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import click

from shoal.core.engine.policy import RoundPolicy

F = TypeVar("F", bound=Callable[..., Any])


class Option(NamedTuple):
    """An option for a field of RoundPolicy. default: what to print in place of its value."""

    field: str
    metavar: str
    help: str
    default: str = ""


OPTIONS = (
    Option("devices", "N", "Close a round after N reports.", "a report of every device that is connected"),
    Option("minimum", "N", "Open a round with at least N devices, and use it if at least N of them report."),
    Option("oversample", "FACTOR", "Ask FACTOR times --devices in each round, to absorb drop-outs."),
    Option(
        "wait_for_devices",
        "SECONDS",
        "Wait up to SECONDS for --devices to connect, then start with --minimum.",
    ),
    Option("deadline", "SECONDS", "Maximum length of a round."),
    Option(
        "straggler_factor",
        "FACTOR",
        "Close a round when a device takes more than FACTOR times what the others needed; 0: only at the "
        "deadline.",
    ),
    Option("device_timeout", "SECONDS", "Treat a device as gone after SECONDS without contact."),
    Option("max_abandoned_rounds", "N", "Fail the run after N abandoned rounds in a row."),
    Option(
        "retry_after",
        "SECONDS",
        "Wait SECONDS after an abandoned round; twice as long after each further one in a row.",
    ),
)
POLICY = tuple(option.field for option in OPTIONS)


def policy_options(*, defaults: bool) -> Callable[[F], F]:
    """Add the options to a command. defaults: whether their help names the default values."""

    def add(command: F) -> F:
        for option in reversed(OPTIONS):
            value = getattr(RoundPolicy(), option.field)
            shown = f"  [default: {option.default or f'{value:g}'}]" if defaults else ""
            command = click.option(
                f"--{option.field.replace('_', '-')}",
                type=type(value),
                metavar=option.metavar,
                help=option.help + shown,
            )(command)
        return command

    return add
