"""Small networks by name. Each module here that does not start with "_" is one, with a function `build`.

    build("lenet5", channels=3, size=28, classes=10)

Adding a network is adding a module: there is no list to edit.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any, cast

from torch import nn

from shoal.core.errors import ConfigError, near


def names() -> tuple[str, ...]:
    """The networks there are, in alphabetical order."""
    return tuple(sorted(found.name for found in pkgutil.iter_modules(__path__) if found.name[0] != "_"))


def build(name: str, **options: Any) -> nn.Module:
    """A network with PyTorch's default initial weights, and a method `latent(x) -> (B, v)`.

    Weights come from torch's global generator. options: the arguments of that network's own `build`.

    Raises ConfigError for an unknown name, an unknown option, or a value that the network cannot have.
    """
    make, known = _made(name)
    for option in options:
        if option not in known:
            raise ConfigError(f"network {name} has no option {option!r}", near(option, known))
    return cast(nn.Module, make(**options))


def options_of(name: str) -> list[str]:
    """The arguments that a network can be built with. Raises ConfigError for an unknown name."""
    return _made(name)[1]


def _made(name: str) -> tuple[Callable[..., object], list[str]]:
    if name not in names():
        raise ConfigError(f"there is no network {name!r}", near(name, list(names())))
    make = importlib.import_module(f"{__name__}.{name}").build
    return make, list(inspect.signature(make).parameters)
