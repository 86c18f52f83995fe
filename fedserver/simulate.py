"""`fedserver simulate`: an experiment of the papers in one process, by the same code that the daemon runs.

PyTorch and the data sets are imported when the verb runs, so that a server never loads them.
"""

from pathlib import Path
from typing import Any

import click

from fedcore.errors import ConfigError
from fedcore.shell.console import Console, Result, verb


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
    help="How devices differ: px images, py classes, pyx names of classes, pxy images of some classes.",
)
@click.option(
    "--level", default="5", show_default=True, help="How much: 1 to 8; with --drifts low, medium or high."
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
@click.option("--rounds", type=int, default=10, show_default=True, help="Rounds of training.")
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
def simulate(console: Console, changes: tuple[str, ...], level: str, **options: Any) -> Result:
    """Run an experiment of the papers on this machine: real data, made to differ between simulated devices.

    known is the accuracy of the devices' own clusters' models; test is that of the models they get as
    newcomers without labels.
    """
    from fedserver.experiment import Experiment, run

    how_much = int(level) if level.isdecimal() else level
    settings = Experiment(changes=dict(map(parsed, changes)), level=how_much, **options)
    found = run(settings, console.progress)
    return Result(found, text(found))


def parsed(change: str) -> tuple[str, Any]:
    """ "name=value" with the value read as YAML reads it: 3 is a number, true a truth, scalar a text."""
    import yaml

    name, equals, value = change.partition("=")
    if not (name and equals):
        raise ConfigError(f"--set {change!r} is not NAME=VALUE", "write --set rounds=20")
    try:
        return name.strip(), yaml.safe_load(value)
    except yaml.YAMLError:
        raise ConfigError(f"--set {change!r}: the value cannot be read", "put it in quotes") from None


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
    formed = f", formed in round {found['clustering_round']}" if found["clustering_round"] else ""
    level = f" level {found['level']}" if found["level"] else ""
    drifts = f", {found['drifts']} drifts ({found['mode']})" if found["drifts"] else ""
    return "\n".join(
        [
            *rows,
            "",
            f"{found['algorithm']} ({found['preset']}) on {found['dataset']}, {found['shift']}{level}"
            f"{drifts}, seed {found['seed']}",
            f"known {accuracy['known']:.2f} %, test {test} %",
            f"{found['clusters']} clusters{formed}, ARI against the truth {found['ari']:.2f}",
            f"{found['seconds']['total']:.0f} s, of which {found['seconds']['training']:.0f} s training",
        ]
    )
