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
@click.option("--dataset", default="digits", show_default=True, help="digits, mnist or fashion-mnist.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="The folder with the data set's files.")
@click.option(
    "--shift",
    default="px",
    show_default=True,
    help="How devices differ: px images, py classes, pyx names of classes, pxy images of some classes.",
)
@click.option("--level", type=int, default=5, show_default=True, help="How much they differ, 1 to 8.")
@click.option("--clients", type=int, default=10, show_default=True, help="Number of devices.")
@click.option("--samples", type=int, default=0, help="Training images of a device.  [default: all there are]")
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
def simulate(console: Console, changes: tuple[str, ...], **options: Any) -> Result:
    """Run an experiment of the papers on this machine: real data, made to differ between simulated devices.

    known is the accuracy of the devices' own clusters' models; test is that of the models they get as
    newcomers without labels.

    Simulated data are nobody's, so descriptors are taken as they are, unlike in a run of real devices: what a
    guarantee would leave of the figures shows --set privacy=balanced.
    """
    from fedserver.experiment import Experiment, run

    found = run(Experiment(changes=dict(map(parsed, changes)), **options), console.progress)
    return Result(found, text(found))


def parsed(change: str) -> tuple[str, Any]:
    """ "name=value" with the value read as settings' files are."""
    from fedcore.config import value

    name, equals, text = change.partition("=")
    if not (name and equals):
        raise ConfigError(f"--set {change!r} is not NAME=VALUE", "write --set rounds=20")
    return name.strip(), value(text, f"--set {change!r}")


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
    return "\n".join(
        [
            *rows,
            "",
            f"{found['algorithm']} ({found['preset']}) on {found['dataset']}, {found['shift']} level "
            f"{found['level']}, seed {found['seed']}",
            f"known {accuracy['known']:.2f} %, test {test} %",
            f"{found['clusters']} clusters{formed}, ARI against the truth {found['ari']:.2f}",
            *([f"privacy of the descriptors: {found['privacy']}"] if found["privacy"] else []),
            f"{found['seconds']['total']:.0f} s, of which {found['seconds']['training']:.0f} s training",
        ]
    )
