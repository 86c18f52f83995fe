"""`fedserver simulate`: federated training in one process, by the same code that the daemon runs.

PyTorch and the data sets are imported when the command runs, so that a server never loads them.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from shoal.core.algorithm import Written
from shoal.core.errors import ConfigError
from shoal.lab.cli import plot as picture
from shoal.lab.cli.own_files import fleet_of
from shoal.lab.cli.results import experiment_text, files_text, spreads, write_rows
from shoal.shell.config import parsed
from shoal.shell.console import Console, Result, verb

if TYPE_CHECKING:
    from shoal.lab.fleet import Fleet

PATH = click.Path(path_type=Path)
OF_EXPERIMENTS = (
    *("dataset", "data_dir", "shift", "level", "drifts", "mode", "labels", "clients", "public", "samples"),
    *("copies", "unseen"),
)
"""The options that say how to make devices of one data set."""


@click.command(
    context_settings={"show_default": True},
    epilog="Examples: fedserver simulate --algorithm flux --dataset digits --shift px --level 5; "
    "fedserver simulate --learner learner.py --data 'devices/*.npz' --set rounds=10",
)
@verb
@click.option(
    "--algorithm", default="flux", metavar="NAME", help="The algorithm, such as fedavg or flux-soft."
)
@click.option("--preset", metavar="NAME", default="default", help="Named parameters, such as paper.")
@click.option(
    "--data",
    metavar="PATTERN",
    help="Your own devices: for each a file, npz with arrays x and y, or csv or parquet with --label; or a "
    "folder or archive of images, with a folder for each class. The options from --dataset to --unseen are "
    "not for it.",
)
@click.option("--label", metavar="COLUMN", help="The column of classes, of a csv or parquet file.")
@click.option(
    "--test",
    metavar="SHARE",
    type=click.FloatRange(0.0, 1.0, max_open=True),
    default=0.2,
    help="Share of each file's samples that accuracy is measured on; npz may bring x_test and y_test.",
)
@click.option("--regression", is_flag=True, help="Labels are numbers to predict, not classes; with --data.")
@click.option("--learner", type=PATH, metavar="FILE", help="Your own learner.py, for --data.")
@click.option(
    "--dataset",
    metavar="NAME",
    default="digits",
    help="digits, mnist, fashion-mnist, kmnist, cifar-10 or cifar-100; elec2 or hapt, whose devices differ "
    "by nature; or the path of a data set: npz, csv or parquet, or a folder or archive of images.",
)
@click.option("--data-dir", metavar="DIR", type=PATH, help="The folder with the data set's files.")
@click.option(
    "--shift",
    metavar="NAME",
    default="px",
    help="How the devices differ. px: how images look; py: which classes there are; pyx: what classes are "
    "called; pxy: how the images of some classes look; px+py, pxy+py, pyx+py: two of these; dirichlet: "
    "shares of classes; fedrc: all of these; qs-features, qs-labels, qs-skew: concepts, and numbers of "
    "samples.",
)
@click.option(
    "--level",
    metavar="LEVEL",
    default="5",
    help="How much they differ, 1 to 8; low, medium or high with --drifts; for qs-* scenario 0 (none), "
    "1 (within concepts) or 2 (between them).",
)
@click.option(
    "--drifts",
    metavar="N",
    type=click.IntRange(min=0),
    default=0,
    help="Number of stages that each device's data go through.",
)
@click.option(
    "--mode",
    metavar="NAME",
    default="trDR_teND",
    help="What drifts: trDR_teND, trDR_teDR, trDA or trND_teDR.",
)
@click.option(
    "--labels",
    metavar="N",
    type=click.IntRange(min=0),
    default=0,
    help="Number of labeled samples of each class that a newcomer shows, for algorithms that need them.",
)
@click.option("--clients", metavar="N", type=int, default=10, help="Number of devices.")
@click.option(
    "--public",
    metavar="SHARE",
    type=float,
    default=0.0,
    help="Share of the training images that no device gets: a frozen encoder is trained on them (fmcl, "
    "fecfl).",
)
@click.option(
    "--samples",
    show_default=False,
    metavar="N",
    type=int,
    default=0,
    help="Number of training images of each device.  [default: all]",
)
@click.option(
    "--copies",
    metavar="N",
    type=click.IntRange(min=1),
    default=1,
    help="How many times each device has its training samples.",
)
@click.option(
    "--unseen",
    show_default=False,
    metavar="SHARE",
    type=float,
    default=-1.0,
    help="With --drifts: share of the devices that are tested on a distribution that they did not train on.  "
    "[default: as --mode has it]",
)
@click.option(
    "--participation",
    metavar="SHARE",
    type=click.FloatRange(0.0, 1.0, min_open=True),
    default=1.0,
    help="Share of the devices that a round asks.",
)
@click.option(
    "--held-out",
    metavar="SHARE",
    type=click.FloatRange(0.0, 1.0, max_open=True),
    default=0.2,
    help="Share of each device's training samples that it measures on during the run instead.",
)
@click.option(
    "--tuned",
    is_flag=True,
    show_default=False,
    help="Also measure what devices have that fine-tune their cluster's model, as fedclient place does.",
)
@click.option(
    "--model",
    show_default=False,
    default="",
    metavar="NAME",
    help="A built-in network, such as mlp.  [default: one that fits]",
)
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of the network, such as hidden=[200].",
)
@click.option(
    "--rounds",
    show_default=False,
    metavar="N",
    type=int,
    default=0,
    help="Rounds of training.  [default: the preset's]",
)
@click.option(
    "--seed", metavar="SEED", type=int, default=42, help="Random seed for the data split and shuffling."
)
@click.option(
    "--seeds",
    show_default=False,
    default="",
    metavar="N,N",
    help="Several seeds, one run each; prints means and deviations.",
)
@click.option(
    "--model-seed", metavar="SEED", type=int, default=42, help="Random seed for the initial weights."
)
@click.option("--device", metavar="NAME", default="auto", help="Where to compute: auto, cpu or cuda.")
@click.option(
    "--threads",
    metavar="N",
    type=click.IntRange(min=0),
    default=1,
    help="Number of PyTorch's threads; 0 leaves it to PyTorch.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Do the devices' tasks in N processes, one thread each; the models are the same for any N.",
)
@click.option(
    "--backend",
    type=click.Choice(["processes", "ray"]),
    default="processes",
    help="Where workers run: processes of this machine, or a cluster of Ray.",
)
@click.option("--csv", "table", type=PATH, metavar="FILE", help="Write one row for each device and seed.")
@click.option(
    "--plot",
    type=PATH,
    metavar="FILE",
    help="Draw accuracy and loss over the rounds, by cluster or with --seeds by run: svg, png or pdf.",
)
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="A parameter of the algorithm.")
def simulate(
    console: Console,
    changes: tuple[str, ...],
    options: tuple[str, ...],
    level: str,
    data: str | None,
    label: str | None,
    test: float,
    regression: bool,
    learner: Path | None,
    seed: int,
    seeds: str,
    table: Path | None,
    plot: Path | None,
    **others: Any,
) -> Result:
    """Train a fleet of simulated devices on this machine, and measure what each of them gets.

    With --data the devices are your files, and the network is your learner. Without it this is an experiment
    of the papers: a real data set, made to differ between the devices. "known" is the accuracy of the models
    of the devices' own clusters; "test" is that of the models that they get as newcomers without labels.

    Descriptors are used as they are (privacy=off), unlike in runs of real devices. To see what a privacy
    guarantee leaves of the accuracy, use --set privacy=balanced.
    """
    chosen = numbers(seeds) if seeds else [seed]
    settings = {"changes": dict(map(parsed, changes)), "options": dict(map(meant, options)), **others}
    if data is None and (learner is not None or regression):
        name = "--regression" if learner is None else "--learner"
        raise ConfigError(f"{name} is for your own devices", "give --data 'devices/*.npz' too")
    if data is not None:
        _refuse(OF_EXPERIMENTS, "your own devices", "--data")
    else:
        from shoal.lab.datasets import natural

        if (dataset := settings["dataset"]) in natural.NAMES:
            _refuse(natural.NOT_FOR, f"{dataset}, whose devices differ by nature", "--dataset")
    if plot is not None:
        picture.check(plot)
    found = {}
    for number in chosen:
        say = console if len(chosen) == 1 else _Numbered(console, number)
        if data is None:
            found[number] = _experiment(say, level, {**settings, "seed": number, "label": label or ""})
        else:
            own = fleet_of(data, label, test, settings["held_out"], regression)
            found[number] = _own(say, own, learner, {**settings, "seed": number})
    if table is not None:
        write_rows(table, found)
    if plot is not None:
        title = f"{settings['algorithm']} on {settings['dataset'] if data is None else data}"
        picture.draw(plot, title, {seed: each["history"] for seed, each in found.items()})
    shown = experiment_text if data is None else files_text
    if len(chosen) == 1:
        return Result(found[chosen[0]], shown(found[chosen[0]]))
    spread = spreads(found)
    lines = [f"{name:<12}{mean:>8.2f} % +- {deviation:.2f}" for name, (mean, deviation) in spread.items()]
    title = f"{settings['algorithm']}, seeds {', '.join(map(str, chosen))}: mean and standard deviation"
    means = {name: {"mean": mean, "deviation": deviation} for name, (mean, deviation) in spread.items()}
    return Result({"accuracy": means, "seeds": found}, "\n".join([title, *lines]))


def _refuse(names: Iterable[str], whose: str, other: str) -> None:
    """Raise ConfigError for an option that was given and says how to make devices, where they are there.

    whose: devices they are. other: the option that has chosen them.
    """
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option} is not for {whose}", f"leave {option} or {other} out")


class _Numbered:
    """A console that says which seed its lines are of."""

    def __init__(self, console: Console, seed: int) -> None:
        self._console, self._seed = console, seed

    def progress(self, line: str) -> None:
        self._console.progress(f"seed {self._seed}: {line}")


def _experiment(console: Any, level: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    from shoal.lab.experiments.experiment import Experiment, run

    return run(Experiment(level=int(level) if level.isdecimal() else level, **settings), console.progress)


def _own(console: Any, fleet: "Fleet", learner: Path | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """A run on files. settings: as of an experiment; those of the data are not used."""
    from shoal.lab.simulation import simulate as run

    if learner is not None and settings["model"]:
        raise ConfigError("--learner and --model are both given", "give one of them")
    rounds = {"rounds": settings["rounds"]} if settings["rounds"] else {}
    result = run(
        settings["algorithm"],
        fleet,
        model=learner or settings["model"] or None,
        options=settings["options"],
        preset=settings["preset"],
        seed=settings["seed"],
        model_seed=settings["model_seed"],
        device=settings["device"],
        threads=settings["threads"],
        workers=settings["workers"],
        backend=settings["backend"],
        participation=settings["participation"],
        progress=console.progress,
        **{**rounds, **settings["changes"]},
    )
    found = {**result.to_dict(), "summary": result.summary()}
    if settings["tuned"]:
        rows = [{**row, "tuned": result.tuned[row["device"]]} for row in found["devices"]]
        found |= {"devices": rows, "accuracy": {**found["accuracy"], "tuned": result.tuned.mean}}
    return found


def numbers(seeds: str) -> list[int]:
    """The seeds of a list such as 42,43. Raises ConfigError."""
    try:
        return [int(part) for part in seeds.split(",")]
    except ValueError:
        raise ConfigError(
            f"--seeds {seeds!r} is not a list of whole numbers", "write --seeds 42,43"
        ) from None


def meant(change: str) -> tuple[str, Any]:
    """The same for a network's options, which take the value that YAML reads."""
    name, value = parsed(change)
    return name, value.meant if isinstance(value, Written) else value
