"""Runs whose devices send what they have trained in fewer bytes, or train only some of a model's tensors.

Between the algorithm and its devices: tasks of training leave as `TrainEncoded`, and their answers come back
to the algorithm as `Trained`, each tensor decoded when it is read. So no algorithm knows of encodings, and
the simulator and the server compute the same bits.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, TypeVar, overload

from shoal.core.algorithm import Plan, Report
from shoal.core.errors import ConfigError, near
from shoal.core.exchange.encoding.messages import TrainedEncoded, TrainEncoded
from shoal.core.exchange.encoding.updates import Merged
from shoal.core.exchange.messages import Message, Train
from shoal.core.exchange.tensors import manifest_of
from shoal.core.types import Tensors

S = TypeVar("S")
Plans = Callable[[S, Sequence[str]], Plan]


def is_asked(parameters: Any) -> bool:
    """Whether a run has such parameters."""
    return bool(getattr(parameters, "encoded", False))


def check(model: Tensors, parameters: Any) -> None:
    """Raise ConfigError if a run with these parameters is to train tensors that the model does not have."""
    if is_asked(parameters):
        split(model, parameters.trainable)


def plan(found: Plan, parameters: Any) -> Plan:
    """The same round, with encoded tasks. Raises ConfigError if no tensor is to train."""
    made: dict[int, Message] = {}  # one task for all devices that have the same: it is stored and hashed once
    for task in found.tasks.values():
        if type(task) is Train and id(task) not in made:
            made[id(task)] = _encoded(task, parameters)
    return replace(found, tasks={device: made.get(id(task), task) for device, task in found.tasks.items()})


def split(model: Tensors, trainable: str) -> tuple[Tensors, Tensors | None]:
    """The tensors that train, and the others; None if all train.

    trainable: their names with * and ?, separated by spaces; "" for all. Raises ConfigError for a pattern
    that no name fits.
    """
    if not trainable:
        return model, None
    names, patterns = [spec.name for spec in manifest_of(model)], trainable.split()
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            hint = near(pattern, names)
            raise ConfigError(f"trainable: no tensor of the model is named {pattern!r}", hint)
    own = {name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)}
    if len(own) == len(names):
        return model, None
    return (
        {name: model[name] for name in names if name in own},
        {name: model[name] for name in names if name not in own},
    )


def _encoded(task: Train, parameters: Any) -> TrainEncoded:
    own, frozen = split(task.model, parameters.trainable)
    return TrainEncoded.of(task, own, frozen, parameters.encoding)


class Opened(Sequence[Report]):
    """The reports of a round as the algorithm expects them. plain: its plan without encodings."""

    def __init__(self, state: S, reports: Sequence[Report], plain: Plans[S], parameters: Any) -> None:
        self._reports, self._parameters = reports, parameters
        self._tasks = plain(state, sorted(report.device for report in reports)).tasks

    @overload
    def __getitem__(self, index: int) -> Report: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Report]: ...
    def __getitem__(self, index: int | slice) -> Report | Sequence[Report]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        report = self._reports[index]
        if not isinstance(report.message, TrainedEncoded):
            return report
        task = self._tasks[report.device]
        assert isinstance(task, Train)
        decoded = _encoded(task, self._parameters).decoded(report.message)
        whole = (
            Merged(manifest_of(task.model), decoded, task.model) if self._parameters.trainable else decoded
        )
        return Report(report.device, report.message.opened(whole))

    def __len__(self) -> int:
        return len(self._reports)
