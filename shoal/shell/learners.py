"""Load a learner from an author's Python file or an installed module. Needs PyTorch."""

import importlib
import importlib.util
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.core.device_kit.learner import Learner, authors, builtin, initial_weights, of_module
from shoal.core.errors import ConfigError
from shoal.core.types import Tensors

FROM_FILE = "shoal_learner"
"""How the names of modules begin that were made of learner files."""


def from_module(name: str) -> Learner:
    """The learner in an installed module. Raises ConfigError if it is not installed, LearnerFault if it
    fails."""
    with authors(f"module {name}"):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # the module exists, and something that it imports does not
            raise ConfigError(f"there is no module {name!r}", "install the learner on this device") from error
    return of_module(name, module)


def from_file(path: Path | str) -> Learner:
    """The learner in a file. The file may import other files of its folder, at its top.

    Raises ConfigError if there is no such file, LearnerFault if it fails.
    """
    path = Path(path).resolve()
    if not path.is_file():
        raise ConfigError(f"there is no learner file {path}", "give the path of a learner.py")
    name = FROM_FILE + re.sub(r"\W", "_", str(path))  # devices in one process may use different files
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file", "give the path of a learner.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # as an import does: dataclasses in the file look their module up
    sys.path.insert(0, str(path.parent))
    try:
        with authors(f"file {path.name}"):
            spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return of_module(path.name, module)


def weights(learner: Path | str, options: Mapping[str, Any], seed: int) -> Tensors:
    """The initial weights of the learner in a file, or of the built-in one of that name with `options`."""
    made = from_file(learner) if isinstance(learner, Path) else builtin(learner, options)
    return initial_weights(made, seed)
