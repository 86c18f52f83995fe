"""An algorithm in one class: for a notebook cell, a test or a small module."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal.core.algorithm.card import STANDARD_DEVICE, Algorithm
from shoal.core.algorithm.discovery import register
from shoal.core.algorithm.parameters import TrainingParameters
from shoal.core.exchange.messages import Message


def algorithm(
    name: str,
    *,
    summary: str = "",
    parameters: type | None = None,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    variants: Mapping[str, Mapping[str, Any]] | None = None,
    messages: Sequence[type[Message]] = (),
    initial: Callable[[Any], int] = lambda parameters: 1,
) -> Callable[[Any], Algorithm]:
    """Make an algorithm from a class, a module or any other object that has `start`, `plan`, `reduce` and
    `place`, and make it known in this process under its name.

    The functions of a class are called without an instance. If the object has a function `perform`, it is the
    device half as well; otherwise devices answer the standard messages. parameters: a frozen dataclass; by
    default the class's own `Parameters`, or else `TrainingParameters`. The other arguments are those of
    `Algorithm`.

    Raises ConfigError if a rule is broken, or if another algorithm has the name.

    Example:
        @shoal.algorithm("nova")
        class nova:
            '''Me, Nova, 2026: one model, the plain mean of what the devices trained.'''

            def start(model, parameters) -> State: ...
            plan, reduce = phased({"train": (ask_train, take_train)})
            place = place_by_loss

        print(shoal.check(nova))
        shoal.simulate(nova, fleet, model=Net)
    """

    def card(half: Any) -> Algorithm:
        about = inspect.getdoc(half) or ""
        own: type = getattr(half, "Parameters", TrainingParameters)
        made = Algorithm(
            name=name,
            summary=summary or about.split("\n")[0],
            parameters=parameters or own,
            server_module=half,
            device_module=half if hasattr(half, "perform") else STANDARD_DEVICE,
            presets=presets or {},
            variants=variants or {},
            messages=messages,
            initial=initial,
            about=about or name,
        )
        register(made)
        return made

    return card
