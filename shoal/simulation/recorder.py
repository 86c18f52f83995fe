"""The history of a simulated run, written while it goes on."""

import copy
import time
from collections.abc import Mapping

import numpy as np

from shoal.core.algorithm import State
from shoal.core.device_kit.learner import OutOfMemory
from shoal.core.engine import simulate as engine
from shoal.core.engine.events import Abandon, Effect, Opened, Save
from shoal.core.errors import LearnerFault
from shoal.core.exchange.messages import Message
from shoal.core.server_kit.history.figures import Figures, figures_of, measured_on
from shoal.core.server_kit.history.records import HELD_OUT, TRAIN
from shoal.core.texts import percent, plural
from shoal.core.types import DeviceId, ModelKey
from shoal.result import Round
from shoal.simulation.progress import Progress


class Recorder:
    """Writes the history of a run while it goes on, and says how far it is. what: the name of what devices
    measure."""

    def __init__(self, state: State, outcome: engine.Outcome, say: Progress, what: str = "accuracy") -> None:
        self.rounds: list[Round] = []
        self._what = what
        self._state, self._outcome, self._say = state, outcome, say
        self._began = self._opened = time.perf_counter()
        self._title, self._bytes, self._measured = "", (0, 0), ""
        self._figures: dict[DeviceId, Figures] = {}
        self.fault: LearnerFault | None = None

    def listening(self, name: DeviceId, call: engine.Device) -> engine.Device:
        """The same device, with its answers recorded, and the last fault of the learner, with its name."""

        def perform(message: Message, seed: int) -> Message:
            try:
                answer = call(message, seed)
            except LearnerFault as fault:
                self.fault = copy.copy(fault)
                self.fault.message = f"{name}: {fault.message}"
                raise
            self._figures[name] = figures_of(message, answer)
            return answer

        return perform

    def watch(self, effect: Effect) -> None:
        if isinstance(self.fault, OutOfMemory):  # of this machine: no reason to go on without a device
            raise self.fault
        if isinstance(effect, Opened):
            self._opened, self._title = time.perf_counter(), effect.title
            self._figures.clear()
            self._say(f"{effect.title}{self._measured}{self._left()}")
            self._measured = ""
        elif isinstance(effect, Save):
            self._close(effect.state)
        elif isinstance(effect, Abandon):
            self._figures.clear()

    def _close(self, state: State) -> None:
        total = sum(self._outcome.up.values()), sum(self._outcome.down.values())
        figures, part = list(self._figures.values()), measured_on(self._figures)
        loss, accuracy = (_mean([getattr(each, name) for each in figures]) for name in ("loss", "accuracy"))
        self.rounds.append(
            Round(
                number=len(self.rounds) + 1,
                title=self._title,
                phase=str(getattr(self._state, "phase", "")),
                seconds=time.perf_counter() - self._opened,
                devices=len(figures),
                loss=loss,
                accuracy=accuracy,
                measured_on=part,
                trained=any(each.trained for each in figures),
                clusters=len(state.models),
                bytes_up=total[0] - self._bytes[0],
                bytes_down=total[1] - self._bytes[1],
                accuracies=_by_cluster(state, self._figures),
            )
        )
        if accuracy is not None:
            of = HELD_OUT if part == TRAIN else part
            self._measured = f", {of.replace('_', '-')} {self._what} {percent(accuracy)}"
        self._state, self._bytes = state, total

    def _left(self) -> str:
        """The time that the rest will take, at the pace so far."""
        done, total = self._state.progress, getattr(self._state, "rounds", 0)
        if not 0 < done < total:
            return ""
        left = (time.perf_counter() - self._began) / done * (total - done)
        return f", about {plural(round(left), 'second')} left"


def _by_cluster(state: State, figures: Mapping[DeviceId, Figures]) -> dict[ModelKey, float]:
    """The mean accuracy of each cluster's devices; of all devices, where there is one model."""
    only = next(iter(state.models)) if len(state.models) == 1 else ""
    found = dict[ModelKey, list[float]]()
    for device, each in sorted(figures.items()):
        home = state.assignments.get(device, only)
        if home and each.accuracy is not None:
            found.setdefault(home, []).append(each.accuracy)
    return {key: float(np.mean(each)) for key, each in sorted(found.items())}


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
