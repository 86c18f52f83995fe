"""The options of `fedserver run start` and `run set` for the policy of a run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Devices:
    """Which devices a run takes. number: the reports that close a round, None if it was not given. labels:
    what each device must have."""

    number: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


class DevicesType(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A number, labels, or both.

    Example:
        >>> DevicesType().convert("8,site=basel", None, None)
        Devices(number=8, labels={'site': 'basel'})
    """

    name = "devices"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Devices:
        number, labels = None, dict[str, str]()
        for part in str(value).split(","):
            label, equals, wanted = part.strip().partition("=")
            if equals and label and wanted and label not in labels:
                labels[label] = wanted
            elif not equals and label.isdecimal() and number is None:
                number = int(label)
            else:
                self.fail(
                    f"{value!r} is neither a number nor labels: use 8, site=basel,kind=cam or 8,site=basel"
                )
        return Devices(number, labels)


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
LABELS = (
    "With LABELS, such as site=basel,kind=cam: take only devices that have them all; 8,site=basel is both."
)
POLICY = tuple(option.field for option in OPTIONS)


def policy_options(*, defaults: bool) -> Callable[[F], F]:
    """Add the options to a command. defaults: whether their help names the default values."""

    def add(command: F) -> F:
        for option in reversed(OPTIONS):
            value = getattr(RoundPolicy(), option.field)
            shown = f"  [default: {option.default or f'{value:g}'}]" if defaults else ""
            kind: Any = type(value)
            metavar, text = option.metavar, option.help
            if defaults and option.field == "devices":
                kind, metavar, text = DevicesType(), "N|LABELS", f"{text} {LABELS}"
            command = click.option(
                f"--{option.field.replace('_', '-')}", type=kind, metavar=metavar, help=text + shown
            )(command)
        return command

    return add
