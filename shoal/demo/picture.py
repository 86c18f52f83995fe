"""What the demo found, as a picture. Needs matplotlib."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from shoal.demo import fleet

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.offsetbox import AnnotationBbox, OffsetImage

COLORS = ("#1b6ca8", "#d1603d", "#4a8f5c", "#8a5a9e", "#b08a2e", "#5b6770")
GRAY = "#c3c8cd"


def draw(summary: Mapping[str, Any], path: Path) -> None:
    """Draw each device's accuracy under one model for all and under its cluster's model, device by device.

    summary: as `shoal.demo.summary` makes it. path: of the PNG or SVG file to write.
    """
    devices = sorted(summary["devices"], key=lambda row: (row["cluster"], row["device"]))
    placements = summary["placements"]
    images = {member.name: _example(member) for member in (*fleet.trainers(), *fleet.newcomers())}
    clusters = sorted({row["cluster"] for row in devices})
    color = {name: COLORS[number % len(COLORS)] for number, name in enumerate(clusters)}
    figure, axes = plt.subplots(figsize=(8.6, 4.4))
    labels: list[str] = []
    for row in devices:
        y = float(len(labels))
        axes.barh(y + 0.19, 100 * row["fedavg"], 0.36, color=GRAY)
        axes.barh(y - 0.19, 100 * row["flux"], 0.36, color=color[row["cluster"]])
        axes.text(100 * row["flux"] + 0.8, y - 0.19, f"{100 * row['flux']:.1f}", va="center", fontsize=8)
        axes.text(100 * row["fedavg"] + 0.8, y + 0.19, f"{100 * row['fedavg']:.1f}", va="center", fontsize=8)
        labels.append(f"{row['device']}  {row['cluster']}")
    for row in placements:
        y = len(labels) + 0.3
        axes.barh(y, 100 * row["accuracy"], 0.5, color=color.get(row["cluster"], GRAY), alpha=0.55)
        axes.text(100 * row["accuracy"] + 0.8, y, f"{100 * row['accuracy']:.1f}", va="center", fontsize=8)
        labels.append(f"{row['device']}  placed in {row['cluster']}")
    positions = [number + 0.3 * (number >= len(devices)) for number in range(len(labels))]
    axes.set_yticks(positions, labels, fontsize=9)
    axes.tick_params(axis="y", pad=26, length=0)
    for y, row in zip(positions, (*devices, *placements), strict=True):
        _thumbnail(axes, images[row["device"]], y)
    axes.set_ylim(positions[-1] + 0.6, -0.7)
    axes.set_xlim(0, 104)
    axes.set_xlabel("accuracy on the device's own test images, %")
    axes.set_title(
        f"color: one model for each group found (FLUX), mean {100 * summary['flux']['accuracy']:.1f} %\n"
        f"gray: one model for all devices (FedAvg), mean {100 * summary['fedavg']['accuracy']:.1f} %",
        fontsize=9,
        loc="left",
    )
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _example(member: fleet.Member) -> np.ndarray[Any, Any]:
    """The device's first image of the digit 3: the same digit everywhere shows the angles best."""
    labels = member.train.y
    assert labels is not None
    found: np.ndarray[Any, Any] = member.train.x[int(np.argmax(labels == 3))]
    return found


def _thumbnail(axes: Axes, image: np.ndarray[Any, Any], y: float) -> None:
    """One of the device's images, left of its bar, so that a reader sees how the groups differ."""
    shown = OffsetImage(image.reshape(image.shape[-2:]), zoom=2.2, cmap="gray_r")
    place = (-0.022, y)
    box = AnnotationBbox(shown, place, xycoords=("axes fraction", "data"), frameon=False, pad=0.0)
    axes.add_artist(box)
