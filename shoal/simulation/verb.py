"""`fedserver simulate`: a fleet of one's own files, trained in one process by the code that the daemon runs.

PyTorch is imported when the command runs, so that a server never loads it.
"""

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shoal.core.errors import ConfigError, Missing, ShoalError
from shoal.core.texts import measure
from shoal.shell.config import parsed
from shoal.shell.console import Console, Interrupted, Result, verb
from shoal.simulation import plot as picture
from shoal.simulation.own_files import fleet_of
from shoal.simulation.results import files_text, spreads, write_rows

if TYPE_CHECKING:
    from shoal.simulation.fleet import Fleet

Function = TypeVar("Function", bound=Callable[..., Any])
PATH = click.Path(path_type=Path)
CONTEXT = {"show_default": True, "allow_extra_args": True}
"""Of the command: `over_seeds` says what arguments beside the options mean, a pattern that was not quoted."""


def options_of_files(required: bool) -> Callable[[Function], Function]:
    """The options that name the files of the devices and the learner."""
    return _each(
        click.option(
            "--data",
            metavar="PATTERN",
            required=required,
            help="Your devices: for each a file, npz with arrays x and y, or csv or parquet with --label; "
            "or a folder or archive of images, with a folder for each class.",
        ),
        click.option("--label", metavar="COLUMN", help="The column of classes, of a csv or parquet file."),
        click.option(
            "--test",
            metavar="SHARE",
            type=click.FloatRange(0.0, 1.0, max_open=True),
            default=0.2,
            help="Share of each file's samples that accuracy is measured on; npz may bring x_test and "
            "y_test.",
        ),
        click.option("--regression", is_flag=True, help="Labels are numbers to predict, not classes."),
        click.option("--learner", type=PATH, metavar="FILE", help="Your own learner.py."),
    )


def options_of_training(function: Function) -> Function:
    """The options that say how a fleet is trained, and what is written."""
    return _each(
        click.option(
            "--algorithm", default="flux", metavar="NAME", help="The algorithm, such as fedavg or flux-soft."
        ),
        click.option("--preset", metavar="NAME", default="default", help="Named parameters, such as paper."),
        click.option(
            "--participation",
            metavar="SHARE",
            type=click.FloatRange(0.0, 1.0, min_open=True),
            default=1.0,
            help="Share of the devices that a round asks.",
        ),
        click.option(
            "--tuned",
            is_flag=True,
            show_default=False,
            help="Also measure what devices have that fine-tune their cluster's model, as fedclient place "
            "does.",
        ),
        click.option(
            "--model",
            show_default=False,
            default="",
            metavar="NAME",
            help="A built-in network, such as mlp.  [default: one that fits]",
        ),
        click.option(
            "--rounds",
            show_default=False,
            metavar="N",
            type=int,
            default=0,
            help="Rounds of training.  [default: the preset's]",
        ),
        click.option(
            "--seed",
            "seeds",
            metavar="N",
            default="42",
            help="Random seed. Several, such as 42,43, are one run each, and print means and deviations.",
        ),
        click.option("--device", metavar="NAME", default="auto", help="Where to compute: auto, cpu or cuda."),
        click.option(
            "--workers",
            type=click.IntRange(min=1),
            metavar="N",
            help="Do the devices' tasks in N processes, one thread each; the models are the same for any N.",
        ),
        click.option(
            "--csv", "table", type=PATH, metavar="FILE", help="Write one row for each device and seed."
        ),
        click.option(
            "--plot",
            type=PATH,
            metavar="FILE",
            help="Draw accuracy and loss over the rounds, by cluster, or by seed: svg, png or pdf.",
        ),
        click.option(
            "--set", "changes", multiple=True, metavar="NAME=VALUE", help="A parameter of the algorithm."
        ),
    )(function)


def _each(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


@click.command(
    context_settings=CONTEXT,
    epilog="Example: fedserver simulate --learner learner.py --data 'devices/*.npz' --set rounds=10",
)
@verb
@click.pass_obj
@options_of_files(required=True)
@options_of_training
def simulate(
    console: Console,
    /,
    data: str,
    label: str | None,
    test: float,
    regression: bool,
    learner: Path | None,
    **settings: Any,
) -> Result:
    """Train a fleet of simulated devices on this machine, and measure what each of them gets.

    The devices are your files, and the network is your learner, or a small one that fits the data.

    Descriptors are used as they are (privacy=off), unlike in runs of real devices. To see what a privacy
    guarantee leaves of the accuracy, use --set privacy=balanced.
    """
    own = on_files(data, label, test, regression, learner)
    return over_seeds(console, settings, own, files_text, data)


Run = Callable[[Any, Mapping[str, Any]], dict[str, Any]]
"""One run: a console and the settings of `options_of_training`, with one `seed`, give what is printed."""


def on_files(data: str, label: str | None, test: float, regression: bool, learner: Path | None) -> Run:
    """A run on the files of a pattern; see `options_of_files`."""

    def run(console: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
        return _own(console, fleet_of(data, label, test, regression), learner, settings)

    return run


def over_seeds(
    console: Console,
    settings: Mapping[str, Any],
    run: Run,
    text: Callable[[dict[str, Any]], str],
    about: str,
) -> Result:
    """Run with each seed, write what was asked for, and give one result, or means over the seeds. After
    Ctrl-C, or where a later seed fails, over those that are done; then the result is an error, too.

    settings: as `options_of_training` gives them. text: shows one result. about: what is trained on, for the
    picture's title.
    """
    missing = [name for name in ("torch", "sklearn") if importlib.util.find_spec(name) is None]
    if missing:
        raise Missing("simulating needs PyTorch and scikit-learn", "pip install torch scikit-learn kneed")
    if more := click.get_current_context().args:
        hint = "quote a pattern, so that the shell leaves it alone: --data 'devices/*.npz'"
        raise click.UsageError(f"unexpected: {' '.join(more[:3])}; {hint}")
    others = dict(settings)
    table, plot, seeds = others.pop("table"), others.pop("plot"), _numbers(others.pop("seeds"))
    others["changes"] = dict(map(parsed, others["changes"]))
    if plot is not None:
        picture.check(plot)
    found: dict[int, dict[str, Any]] = {}
    error: ShoalError | None = None
    try:
        for seed in seeds:
            say = console if len(seeds) == 1 else _Numbered(console, seed)
            try:
                found[seed] = run(say, {**others, "seed": seed})
            except ShoalError as fault:
                if not found:
                    raise
                error = fault
                console.say(f"seed {seed} failed, and the others go on: {fault}")
    except KeyboardInterrupt:
        if not found:
            raise
        rest = ",".join(str(seed) for seed in seeds if seed not in found)
        error = Interrupted(
            "interrupted; the results are of the seeds that were done", f"the rest: --seed {rest}"
        )
    if table is not None:
        write_rows(table, found)
    if plot is not None:
        title = f"{others['algorithm']} on {about}"
        numbers = any(each["verdict"] and each["verdict"]["numbers"] for each in found.values())
        rounds = {seed: each["history"] for seed, each in found.items()}
        picture.draw(plot, title, rounds, measure(numbers))
    if len(seeds) == 1:
        return Result(found[seeds[0]], text(found[seeds[0]]))
    spread = spreads(found)
    lines = [
        f"{name:<12}{mean:>8.2f} %" + ("" if deviation is None else f" +- {deviation:.2f}")
        for name, (mean, deviation) in spread.items()
    ]
    title = f"{others['algorithm']}, seeds {', '.join(map(str, found))}: mean and standard deviation"
    means = {name: {"mean": mean, "deviation": deviation} for name, (mean, deviation) in spread.items()}
    said = [f"seed {seed}: {each['verdict']['text']}" for seed, each in found.items() if each["verdict"]]
    return Result({"accuracy": means, "seeds": found}, "\n".join([*said, title, *lines]), error)


class _Numbered:
    """A console that says which seed its lines are of."""

    def __init__(self, console: Console, seed: int) -> None:
        self._console, self._seed = console, seed

    def progress(self, line: str) -> None:
        self._console.progress(f"seed {self._seed}: {line}")


def _own(console: Any, fleet: "Fleet", learner: Path | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """A run on files."""
    from shoal.simulation.simulate import simulate as run

    if learner is not None and settings["model"]:
        raise ConfigError("--learner and --model are both given", "give one of them")
    rounds = {"rounds": settings["rounds"]} if settings["rounds"] else {}
    result = run(
        settings["algorithm"],
        fleet,
        model=learner or settings["model"] or None,
        preset=settings["preset"],
        seed=settings["seed"],
        device=settings["device"],
        workers=settings["workers"],
        participation=settings["participation"],
        progress=console.progress,
        **{**rounds, **settings["changes"]},
    )
    found = {**result.to_dict(), "summary": repr(result) if result.statistics else result.summary()}
    if settings["tuned"]:
        rows = [{**row, "tuned": result.tuned[row["device"]]} for row in found["devices"]]
        found |= {"devices": rows, "accuracy": {**found["accuracy"], "tuned": result.tuned.mean}}
    return found


def _numbers(seeds: str) -> list[int]:
    """The seeds of a list such as 42,43, each once. Raises ConfigError."""
    try:
        return list(dict.fromkeys(int(part) for part in seeds.split(",")))
    except ValueError:
        raise ConfigError(f"--seed {seeds!r} is not a list of whole numbers", "write --seed 42,43") from None
