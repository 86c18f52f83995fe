"""`fedserver simulate`: an experiment of the papers in one process, by the same code that the daemon runs.

PyTorch and the data sets are imported when the verb runs, so that a server never loads them.
"""

from pathlib import Path
from typing import Any

import click

from shoal.core.algorithm import Written
from shoal.shell.config import parsed
from shoal.shell.console import Console, Result, verb


@click.command(
    epilog="Example: fedserver simulate --algorithm flux --dataset digits --shift px --level 5 --seed 42"
)
@verb
@click.option(
    "--algorithm", default="flux", show_default=True, metavar="NAME", help="Such as fedavg, flux-soft."
)
@click.option("--preset", default="default", show_default=True, help="Named parameters, such as paper.")
@click.option(
    "--dataset",
    default="digits",
    show_default=True,
    help="digits, mnist or fashion-mnist; elec2 or hapt, whose devices differ by nature.",
)
@click.option("--data-dir", type=click.Path(path_type=Path), help="The folder with the data set's files.")
@click.option(
    "--shift",
    default="px",
    show_default=True,
    help="How devices differ: px images, py classes, pyx names of classes, pxy images of some classes, "
    "dirichlet shares of classes, fedrc all at once; qs-features, qs-labels, qs-skew: concepts, and "
    "numbers of samples.",
)
@click.option(
    "--level",
    default="5",
    show_default=True,
    help="How much they differ, 1 to 8; with --drifts low, medium or high; of qs: scenario 0 (none), "
    "1 (within concepts) or 2 (between them).",
)
@click.option(
    "--drifts", type=click.IntRange(min=0), default=0, help="Stages that each device's data go through."
)
@click.option(
    "--mode",
    default="trDR_teND",
    show_default=True,
    help="What drifts: trDR_teND, trDR_teDR, trDA or trND_teDR.",
)
@click.option(
    "--labels",
    type=click.IntRange(min=0),
    default=0,
    help="Samples of each class that a newcomer shows with labels, where the algorithm asks for them.",
)
@click.option("--clients", type=int, default=10, show_default=True, help="Number of devices.")
@click.option("--model", default="", metavar="NAME", help="Such as mlp; by default one that fits the images.")
@click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="Of --model: hidden=[200].")
@click.option(
    "--public",
    type=float,
    default=0.0,
    show_default=True,
    help="Share of the train images that no device gets, to train a frozen encoder on (fmcl, fecfl).",
)
@click.option("--samples", type=int, default=0, help="Training images of a device.  [default: all there are]")
@click.option("--rounds", type=int, default=0, help="Rounds of training.  [default: the preset's]")
@click.option("--seed", type=int, default=42, show_default=True, help="Of the data and of all shuffling.")
@click.option("--model-seed", type=int, default=42, show_default=True, help="Of the initial weights.")
@click.option("--device", default="auto", show_default=True, help="Where to compute: auto, cpu or cuda.")
@click.option(
    "--threads",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Of PyTorch; 0: PyTorch's own.",
)
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="A parameter of the algorithm.")
def simulate(
    console: Console, changes: tuple[str, ...], options: tuple[str, ...], level: str, **others: Any
) -> Result:
    """Run an experiment of the papers on this machine: real data, made to differ between simulated devices.

    known is the accuracy of the devices' own clusters' models; test is that of the models they get as
    newcomers without labels.

    Simulated data are nobody's, so descriptors are taken as they are (privacy=off), unlike in runs of real
    devices. What a guarantee leaves of the figures is seen with --set privacy=balanced.
    """
    from shoal.lab.experiment import Experiment, run

    experiment = Experiment(
        level=int(level) if level.isdecimal() else level,
        changes=dict(map(parsed, changes)),
        options=dict(map(meant, options)),
        **others,
    )
    found = run(experiment, console.progress)
    return Result(found, text(found))


def meant(change: str) -> tuple[str, Any]:
    """The same for a network's options, which take what YAML reads."""
    name, value = parsed(change)
    return name, value.meant if isinstance(value, Written) else value


def text(found: dict[str, Any]) -> str:
    """The result for people."""
    accuracy = found["accuracy"]
    rows = [f"{'device':<12}{'truth':>6}{'cluster':>10}{'known':>8}{'placed':>10}{'test':>8}"]
    for row in accuracy["per_device"]:
        test = "-" if row["test"] is None else f"{100 * row['test']:.1f}"
        rows.append(
            f"{row['device']:<12}{row['concept']:>6}{row['cluster']:>10}{100 * row['known']:>8.1f}"
            f"{row['placed'] or '-':>10}{test:>8}"
        )
    test = "-" if accuracy["test"] is None else f"{accuracy['test']:.2f}"
    own, newcomers = (
        "" if accuracy[name] is None else f", {name} {accuracy[name]:.2f} %" for name in ("own", "newcomers")
    )
    formed = f", formed in round {found['clustering_round']}" if found["clustering_round"] else ""
    level = f" level {found['level']}" if found["level"] else ""
    drifts = f", {found['drifts']} drifts ({found['mode']})" if found["drifts"] else ""
    return "\n".join(
        [
            *rows,
            "",
            f"{found['algorithm']} ({found['preset']}) on {found['dataset']}, "
            f"{found['shift']}{level}{drifts}, seed {found['seed']}",
            f"known {accuracy['known']:.2f} %, test {test} %{own}{newcomers}",
            f"{found['clusters']} clusters{formed}, ARI against the truth {found['ari']:.2f}",
            *([f"privacy of the descriptors: {found['privacy']}"] if found["privacy"] else []),
            f"{found['seconds']['total']:.0f} s, of which {found['seconds']['training']:.0f} s training",
        ]
    )
