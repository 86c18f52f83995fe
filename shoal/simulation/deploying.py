"""A simulated run as a folder from which a real fleet starts the same one."""

import json
import shutil
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import yaml

from shoal.core import models
from shoal.core.data.arrays import network_input
from shoal.core.data.layouts import AS_THEY_ARE, CHANNEL, FLAT, SQUARE
from shoal.core.data.views import HELD_OUT
from shoal.core.device_kit import shapes, tracing
from shoal.core.device_kit.learner import Learner, initial_weights
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.errors import ConfigError, LearnerFault, Missing
from shoal.core.exchange.tensors import ORDER, digest
from shoal.core.inference.graph.model import Graph
from shoal.core.types import Tensors
from shoal.result import Result
from shoal.shell import disk
from shoal.shell.learners import from_file
from shoal.simulation.source import HINT, files_of

if TYPE_CHECKING:
    from shoal.simulation.simulate import SimulationResult

RUN, DEVICE, WEIGHTS, GRAPH = "run.yaml", "device.yaml", "weights.safetensors", "graph.onnx"


def deploy(result: "SimulationResult", folder: Path) -> str:
    """Write the folder. Returns what to type, for people. Raises ConfigError, and LearnerFault if the learner
    that was written fails."""
    from safetensors.numpy import save

    if result.began is not None:
        raise ConfigError(
            "this run went on from an earlier one, whose models a real fleet does not have yet",
            "deploy the earlier one; from a release of it: fedserver run start --from RELEASE",
        )
    folder.mkdir(parents=True, exist_ok=True)
    first = initial_weights(result.learner, result.model_seed)
    learner = _learner(result.learner, folder, first, result.model_seed)
    files = {DEVICE: _device(result, learner), WEIGHTS: save(first, {ORDER: json.dumps(list(first))})}
    names, untraced = {"initial_weights": WEIGHTS}, ""
    try:
        files[GRAPH] = graph_of(result).data
        names["graph"] = GRAPH
    except (LearnerFault, Missing) as fault:
        untraced = f"There is no graph for ONNX files and devices without PyTorch: {fault}\n"
    if result.card.initial(result.parameters) > 1:  # of several first models, the devices make the others
        del names["initial_weights"], files[WEIGHTS]
    files[RUN] = _run(result, names)
    for name, content in files.items():
        disk.write(folder / name, content)
    return f"{_commands(folder)}{untraced}"


def graph_of(result: "SimulationResult") -> Graph:
    """The network of a simulation as a graph. Raises LearnerFault, and Missing without the packages."""
    one = next(iter(result.fleet.values())).test.x[:2]
    x = torch.from_numpy(network_input(np.repeat(result.layout.apply(one)[:1], 2, axis=0)))
    about = tracing.noted(classes=result.class_names)
    return tracing.export(result.learner, x, about)


def _learner(learner: Learner, folder: Path, first: Tensors, seed: int) -> dict[str, Any]:
    """The learner as the settings of a device name it; its files are written, and give the same network."""
    build = learner.build
    if isinstance(build, partial) and build.func is models.build and learner.latent is None:
        return {"builtin": build.args[0], **({"options": dict(build.keywords)} if build.keywords else {})}
    for name, text in files_of(learner).items():
        disk.write(folder / name, text.encode())
    made = digest(initial_weights(from_file(folder / "learner.py"), seed))
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)  # that was for this machine only
    if made != digest(first):
        raise ConfigError(f"{folder / 'learner.py'} makes other weights than the simulation began with", HINT)
    return {"file": "learner.py"}


def _device(result: "SimulationResult", learner: dict[str, Any]) -> bytes:
    fleet, layout = result.fleet, result.layout
    data: dict[str, Any] = {"npz": "data.npz"}
    said = "data.npz: arrays x and y, and perhaps x_test and y_test; or csv, parquet, images, a function"
    if layout in (CHANNEL, FLAT, SQUARE):
        data["shape"] = list(layout.shape(fleet.shape))
    elif layout is not AS_THEY_ARE:
        said += f"\n# {shapes.setting(layout, fleet.shape)}"
    if fleet.class_names is not None:
        data["classes"] = list(fleet.class_names)
    if fleet.regression:
        data["regression"] = True
    if fleet.held_out != HELD_OUT:
        data["held_out"] = fleet.held_out
    return f"# A device. {said}\n{_yaml({'learner': learner, 'data': data})}".encode()


def _run(result: "SimulationResult", files: dict[str, str]) -> bytes:
    parameters = dict(result.given)
    for name in ("classes", "clusters"):
        if hasattr(result.parameters, name) and (name == "classes" or name in parameters):
            parameters[name] = getattr(result.parameters, name)
    usual, policy = asdict(RoundPolicy()), asdict(result.policy)
    found = {
        "algorithm": result.algorithm,
        "preset": result.preset,
        "parameters": {name: _plain(value) for name, value in parameters.items()},
        "policy": {name: value for name, value in policy.items() if value != usual[name]},
        "seed": result.seed,
        **files,
    }
    private = hasattr(result.parameters, "privacy") and "privacy" not in parameters
    said = "; unlike the simulation, it protects what leaves the devices, unless you add privacy: off"
    return f"# The run that was simulated{said if private else ''}.\n{_yaml(found)}".encode()


def _plain(value: Any) -> Any:
    if isinstance(value, Result):  # whose name its run on the real fleet will have
        return value.algorithm
    return list(value) if isinstance(value, tuple) else value


def _yaml(settings: dict[str, Any]) -> str:
    return yaml.safe_dump(settings, sort_keys=False, default_flow_style=None, width=110)


def _commands(folder: Path) -> str:
    return (
        f"On the server:  fedserver run start --file {folder / RUN}\n"
        f"                fedserver token create       (once for each device)\n"
        f"On each device, with {DEVICE}, learner.py if there is one, and its data.npz in one folder:\n"
        f"                fedclient join - --config {DEVICE} --device NAME\n"
        f"                fedclient run --config {DEVICE}\n"
    )
