"""`fedserver simulate` where the laboratory is installed: one's own files, or an experiment of the papers."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from shoal.core.errors import ConfigError
from shoal.shell.console import Console, Result, verb
from shoal.simulation.results import files_text
from shoal.simulation.verb import CONTEXT, on_files, options_of_files, options_of_training, over_seeds
from shoal_lab.cli.text import experiment_text
from shoal_lab.datasets import natural

PATH = click.Path(path_type=Path)
OF_EXPERIMENTS = (
    *("dataset", "data_dir", "shift", "level", "drifts", "mode", "labels", "clients", "public", "samples"),
    *("copies", "unseen", "model_seed", "threads"),
)
"""The options that say how to make devices of one data set."""


@click.command(
    context_settings=CONTEXT,
    epilog="Examples: fedserver simulate --algorithm flux --dataset digits --shift px --level 5; "
    "fedserver simulate --learner learner.py --data 'devices/*.npz' --set rounds=10",
)
@verb
@click.pass_obj
@options_of_files(required=False)
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
    help="What drifts, and what devices are tested on: trDR_teND, trDR_teDR, trDA, trND_teDR or last.",
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
    "--model-seed",
    metavar="N",
    type=int,
    default=42,
    help="Random seed of the initial weights, which the papers' repetitions share.",
)
@click.option(
    "--threads",
    metavar="N",
    type=click.IntRange(min=0),
    default=1,
    help="Number of PyTorch's threads; 0 leaves it to PyTorch.",
)
@options_of_training
def simulate(
    console: Console,
    /,
    data: str | None,
    label: str | None,
    test: float,
    regression: bool,
    learner: Path | None,
    **settings: Any,
) -> Result:
    """Train a fleet of simulated devices on this machine, and measure what each of them gets.

    With --data the devices are your files, and the network is your learner. Without it this is an experiment
    of the papers: a real data set, made to differ between the devices. "known" is the accuracy of the models
    of the devices' own clusters; "test" is that of the models that they get as newcomers without labels.

    Descriptors are used as they are (privacy=off), unlike in runs of real devices. To see what a privacy
    guarantee leaves of the accuracy, use --set privacy=balanced.
    """
    if data is not None:
        _refuse(OF_EXPERIMENTS, "your own devices", "--data")
        own = on_files(data, label, test, regression, learner)
        return over_seeds(console, settings, own, files_text, data)
    if learner is not None or regression:
        name = "--regression" if learner is None else "--learner"
        raise ConfigError(f"{name} is for your own devices", "give --data 'devices/*.npz' too")
    if (dataset := settings["dataset"]) in natural.NAMES:
        _refuse(natural.NOT_FOR, f"{dataset}, whose devices differ by nature", "--dataset")
    level = settings.pop("level")
    settings |= {"level": int(level) if level.isdecimal() else level, "label": label or ""}
    return over_seeds(console, settings, _experiment, experiment_text, settings["dataset"])


def _refuse(names: Iterable[str], whose: str, other: str) -> None:
    """Raise ConfigError for an option that was given and says how to make devices, where they are there.

    whose: devices they are. other: the option that has chosen them.
    """
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option} is not for {whose}", f"leave {option} or {other} out")


def _experiment(console: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    from shoal_lab.experiment import Experiment, run

    return run(Experiment(**settings), console.progress)
