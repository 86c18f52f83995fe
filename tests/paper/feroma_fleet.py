"""What the tests of FEROMA share: a real fleet of rotated digits, and profiles made by hand."""

import functools
from typing import Any

import numpy as np

from shoal.core.algorithms.feroma import ALGORITHM
from shoal.core.algorithms.feroma import server as server_half
from shoal.core.algorithms.feroma.state import Row, State
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.engine.events import Effect, Opened, Save
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import Outcome, simulate
from shoal.core.exchange.messages import Describe, Described, Message
from shoal.core.exchange.parts import ClusterAssignment, Descriptor, Moments
from shoal.core.server_kit.descriptors import BlockScaler, vector
from shoal.core.types import DeviceId
from tests.fleet import first_model, fleet, learner

SMALL = {"inputs": "raw", "rounds": 6, "epochs": 2, "learning_rate": 0.1, "batch_size": 16}
LIKE = {f"d{number}": {f"d{other}" for other in range(number % 2, 6, 2)} for number in range(6)}


def run(preset: str = "default", watch: Any = lambda effect: None, **changes: Any) -> Outcome:
    parameters = ALGORITHM.configure(preset, {**SMALL, **changes})
    state = server_half.start(first_model(), parameters)
    outcome = simulate(server_half, state, fleet(ALGORITHM), RoundPolicy(minimum=6), 3, watch=watch)
    assert not outcome.failed
    return outcome


class Seen:
    """The titles of a run's rounds, and its states."""

    def __init__(self) -> None:
        self.titles, self.states = list[str](), list[State]()

    def __call__(self, effect: Effect) -> None:
        if isinstance(effect, Opened):
            self.titles.append(effect.title)
        elif isinstance(effect, Save):
            assert isinstance(effect.state, State)
            self.states.append(effect.state)


@functools.cache
def usual() -> Seen:
    """A run of six devices, upright digits on the even ones, turned by 90 degrees on the others."""
    found = Seen()
    run(watch=found)
    return found


def context(own: Dataset, seed: int = 0) -> DeviceContext:
    return DeviceContext(learner(), Views.of(own), "cpu", seed, np.random.default_rng(0))


def answered(task: Message, own: Dataset, seed: int = 0) -> Message:
    return ALGORITHM.device().perform(task, context(own, seed))


def described(task: Message, own: Dataset, seed: int = 0) -> Descriptor:
    answer = answered(task, own, seed)
    assert isinstance(answer, Described)
    return answer.descriptor


def placed(state: State, own: Dataset) -> ClusterAssignment:
    question = server_half.place(state, None)
    assert isinstance(question, Describe)
    answer = server_half.place(state, described(question, own))
    assert isinstance(answer, ClusterAssignment)
    return answer


def owner(state: State, answer: ClusterAssignment) -> DeviceId:
    return state.rows[answer.cluster].device


# -- hand-made profiles: two classes, two coordinates, each class of 100 samples --------------------------


def profile(place: float, samples: float = 100.0) -> Descriptor:
    """Two classes around `place` and `place` + 5, of deviation 1."""
    means = np.array([[place + 2.5] * 2, [place] * 2, [place + 5.0] * 2])
    counts = np.array([2.0, 1.0, 1.0]) * samples
    return Descriptor(Moments(means, np.ones((3, 2)), counts), "0" * 64)


def row(place: float, round: int = 3, device: str = "", examples: int = 10, long: bool = False) -> Row:
    return Row(profile(place), examples, round, device, long)


def scaler(*places: float) -> BlockScaler:
    return BlockScaler.fit([vector(profile(place), 2) for place in places], 2)
