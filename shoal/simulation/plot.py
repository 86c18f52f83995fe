"""The accuracy and the loss over the rounds of a simulation, as a picture."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.core.errors import ConfigError, Missing
from shoal.shell import disk

KINDS = ("svg", "png", "pdf")
Rounds = Sequence[Mapping[str, Any]]
"""The history of a run: fields of `shoal.Round`."""
Lines = dict[str, list[tuple[int, float]]]
"""By name, points of a round and a figure."""
MEAN = "mean of the devices"


def check(path: Path) -> None:
    """Raises ConfigError for a name of another kind of file, and Missing without matplotlib: before a run."""
    if path.suffix[1:].lower() not in KINDS:
        raise ConfigError(f"--plot {path}: that is no kind of picture", "name it .svg, .png or .pdf")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise Missing("--plot needs matplotlib", "pip install matplotlib") from None


def accuracies(runs: Mapping[int, Rounds]) -> Lines:
    """Of one run, a line for each cluster, and one for the mean of the devices where there are several; of
    several, by seed, the mean of each. In percent.

    Example:
        >>> accuracies({42: [{"number": 3, "accuracy": 0.5, "accuracies": {"global": 0.5}}]})
        {'global': [(3, 50.0)]}
    """
    found: Lines = {}
    for seed, rounds in runs.items():
        for each in rounds:
            if each["accuracy"] is None:
                continue
            clusters = each["accuracies"] if len(runs) == 1 else {}
            for key, value in clusters.items():
                found.setdefault(key, []).append((each["number"], 100.0 * value))
            if len(clusters) != 1:
                found.setdefault(_of(seed, runs), []).append((each["number"], 100.0 * each["accuracy"]))
    return found


def losses(runs: Mapping[int, Rounds]) -> Lines:
    """The mean loss of the devices in training, a line for each run."""
    found: Lines = {}
    for seed, rounds in runs.items():
        for each in rounds:
            if each["measured_on"] == "train" and each["loss"] is not None:
                found.setdefault(_of(seed, runs), []).append((each["number"], each["loss"]))
    return found


def draw(path: Path, title: str, runs: Mapping[int, Rounds], what: str = "accuracy") -> None:
    """Write the picture. runs: by seed. what: the name of their accuracies. Raises StorageFault."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 6.5), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    drawn = {f"{what}, %": accuracies(runs), "loss in training": losses(runs)}
    for axes, (label, lines) in zip(panels, drawn.items(), strict=True):
        for name, points in lines.items():
            dashed = "--" if name == MEAN else "-"
            axes.plot(*zip(*points, strict=True), dashed, marker="o", markersize=3.5, label=name)
        axes.set_ylabel(label)
        axes.grid(visible=True, alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if lines:
            axes.legend(fontsize="small", frameon=False)
        else:
            axes.text(0.5, 0.5, "not measured during the run", ha="center", transform=axes.transAxes)
    panels[0].set_title(title)
    panels[1].set_xlabel("round")
    panels[1].xaxis.set_major_locator(MaxNLocator(integer=True))
    file = io.BytesIO()
    figure.savefig(file, format=path.suffix[1:].lower(), dpi=120)
    disk.write(path, file.getvalue())


def _of(seed: int, runs: Mapping[int, Rounds]) -> str:
    return MEAN if len(runs) == 1 else f"seed {seed}"
