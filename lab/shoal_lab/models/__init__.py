"""Larger networks, which the papers' tables name. Each module here that does not start
with "_" is one, with a function `build`."""

import importlib
import pkgutil
from collections.abc import Mapping
from functools import partial
from typing import Any

from shoal.core.device_kit.learner import Learner
from shoal.simulation.fleet import Fleet
from shoal.simulation.learners import learner_of


def names() -> tuple[str, ...]:
    """The networks there are, in alphabetical order."""
    return tuple(sorted(found.name for found in pkgutil.iter_modules(__path__) if found.name[0] != "_"))


def learner(name: str, options: Mapping[str, Any], fleet: Fleet) -> Learner:
    """A network of this package or of `shoal.core.models`, for a fleet's images; "": one that fits.

    Raises ConfigError for an unknown name, or an option that the network does not have.
    """
    if name not in names():
        return learner_of(name or None, None, options, fleet)
    build = importlib.import_module(f"{__name__}.{name}").build
    size = {"channels": fleet.shape[0], "size": fleet.shape[1], "classes": fleet.classes}
    return Learner(name, partial(build, **{**size, **options}))
