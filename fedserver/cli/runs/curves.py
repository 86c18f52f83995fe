"""The history of a run as curves in TensorBoard: one event file, with a step for each round."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from shoal.core.errors import ConfigError
from shoal.core.server_kit.history.records import RoundHistory
from shoal.core.types import RunId
from shoal.shell import disk

FILE = "events.out.tfevents.0.{run}"
"""TensorBoard takes files with `tfevents` in their names. One export of a run replaces the one before."""


def scalars(each: RoundHistory) -> Iterator[tuple[str, float]]:
    """The points that a round adds to the curves. A device's reports that do not count have none."""
    part = each.measured_on or "unknown"
    if each.loss is not None:
        yield f"loss/{part}", each.loss
    if each.accuracy is not None:
        yield f"accuracy/{part}", each.accuracy
    for cluster in each.clusters:
        if cluster.loss is not None:
            yield f"loss_{part}/{cluster.key}", cluster.loss
        if cluster.accuracy is not None:
            yield f"accuracy_{part}/{cluster.key}", cluster.accuracy
        yield f"devices/{cluster.key}", cluster.devices
    yield "round/clusters", len(each.clusters)
    yield "round/devices_asked", each.asked
    yield "round/devices_reported", each.reported
    yield "round/seconds", each.seconds
    yield "round/bytes_up", each.bytes_up
    yield "round/bytes_down", each.bytes_down


def write_events(folder: Path, run: RunId, rounds: Sequence[RoundHistory]) -> Path:
    """Write the curves and, as texts, the events of a run. Returns the file, which is whole or not there.

    Raises ConfigError if the package is missing, StorageFault.
    """
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise ConfigError(
            "TensorBoard's format needs tensorboardX, which is not installed",
            'pip install "shoal-fed[tensorboard]"',
        ) from None
    path = folder / FILE.format(run=run)
    with disk.storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder, prefix=".unfinished-"))
        try:
            with SummaryWriter(str(scratch), write_to_disk=True) as writer:
                for each in rounds:
                    for tag, value in scalars(each):
                        writer.add_scalar(tag, value, each.round, each.ended)
                    for event in each.events:
                        writer.add_text(f"events/{event.kind}", event.text, each.round, each.ended)
            (written,) = scratch.glob("*tfevents*")
            disk.write(path, written.read_bytes())
        finally:
            shutil.rmtree(scratch)
    return path
