"""Models in safetensors files, with the order of their tensors, which such a file does not have by itself."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from shoal.core.errors import ConfigError
from shoal.core.exchange.tensors import ORDER
from shoal.core.types import Array, Tensors
from shoal.shell.disk import settle, storing, temporary


def load(path: Path) -> dict[str, Array]:
    """The tensors of a safetensors file, in the model's order if the file has it. Raises ConfigError."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- it is no dict
            order = json.loads((file.metadata() or {}).get(ORDER, "null"))
    except (OSError, SafetensorError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{path} cannot be read as safetensors: {error}", "give a safetensors file"
        ) from None
    return {name: found[name] for name in order} if order and set(order) == set(found) else found


def save(tensors: Tensors, path: Path, facts: Mapping[str, str]) -> None:
    """Write a model to a safetensors file, in one step. facts: more metadata for the file. Raises
    StorageFault."""
    write(path, tensors, {**facts, ORDER: json.dumps(list(tensors))})


def write(path: Path, tensors: Tensors, header: Mapping[str, str]) -> None:
    """Write a safetensors file with this metadata, in one step. Raises StorageFault; then the old file is
    still there."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    with storing(path), temporary(path.absolute().parent) as file:
        try:
            save_file(dict(tensors), file.name, dict(header))
        except SafetensorError as error:  # also where the disk is full, which only its text says
            number = re.search(r"\(os error (\d+)\)", str(error))
            if number is None:
                raise
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
        settle(file, path.absolute())
