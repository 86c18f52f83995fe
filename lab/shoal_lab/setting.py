"""What an experiment is, and its setting: what the devices hold, how they differ, and what is public."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from shoal.core.data.dataset import Dataset
from shoal.core.data.seeds import generator
from shoal.core.data.views import HELD_OUT
from shoal.core.device_kit.learner import Learner
from shoal.core.device_kit.samples import convert
from shoal.core.device_kit.training.train import train
from shoal.core.errors import ConfigError
from shoal.core.exchange.messages import TrainingSettings
from shoal.simulation.fleet import Fleet, Holding, numbered
from shoal.simulation.images import unit
from shoal_lab.datasets import images, natural
from shoal_lab.datasets.natural import NaturalDevice
from shoal_lab.shifts import drifting, make
from shoal_lab.shifts.drift import MODES, UNSEEN, DriftingDevice, changes

ENCODER = TrainingSettings(epochs=20, batch_size=32, learning_rate=0.02)
"""How an encoder is trained on public images."""


@dataclass(frozen=True)
class Experiment:
    """What to run.

    seed: for the data and the shuffling. model_seed: for the initial weights, 42 in all of the papers'
    repetitions. threads: of PyTorch, see `shoal.simulate`. changes: to parameters, by name; privacy is off
    unless they say otherwise, since simulated devices have no one to protect. samples: training images of
    each device; 0 shares out all of them. rounds: 0 for the preset's.

    dataset: a name, or the path of a file or a folder, see `shoal_lab.datasets`; label: its column of
    classes, of a table.

    held_out: the share of each device's samples that it measures on during the run and does not train on;
    FLUX and FEROMA have a fifth, FedRC and CORNFLQS none.

    participation: the share of the devices that a round asks, drawn at random. copies: how many times each
    device has its training samples (FLUX, F.2). random: also measure newcomers that get a cluster at random.
    tuned: also measure what devices have that fine-tune their cluster's model.

    drifts: stages that each device's data go through, see `shoal_lab.shifts.drift`, as is mode; 0: the data
    stay as they are. unseen: with drifts, the share of the devices that are tested on a distribution on which
    they did not train; -1: as mode has it. level: 1 to 8, or with drifts "low", "medium", "high". labels:
    samples of each class that newcomers show. model: a network of `shoal.core.models`, with `options`; ""
    takes one that fits the images. public: the share of the training images that no device gets and that a
    frozen encoder is trained on, for algorithms that need one.
    """

    algorithm: str = "flux"
    preset: str = "default"
    dataset: str = "digits"
    data_dir: Path | None = None
    label: str = ""
    shift: str = "px"
    level: int | str = 5
    drifts: int = 0
    mode: str = MODES[0]
    labels: int = 0
    clients: int = 10
    samples: int = 0
    held_out: float = HELD_OUT
    participation: float = 1.0
    copies: int = 1
    random: bool = False
    tuned: bool = False
    unseen: float = -1.0
    model: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    public: float = 0.0
    rounds: int = 0
    seed: int = 42
    model_seed: int = 42
    device: str = "auto"
    threads: int = 1
    workers: int | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)


def setting(experiment: Experiment) -> dict[str, Any]:
    """How the devices differ, and how they change."""
    if experiment.dataset in natural.NAMES:
        return {"shift": "natural", "level": "", "drifts": experiment.drifts, "mode": "in time order"}
    mode = experiment.mode if experiment.drifts else ""
    return {"shift": experiment.shift, "level": experiment.level, "drifts": experiment.drifts, "mode": mode}


def fleet_of(experiment: Experiment) -> tuple[Fleet, Dataset | None]:
    """The devices with their data, and what is public. Raises ConfigError."""
    holdings, public, classes = _holdings(experiment)
    return numbered(holdings, classes, experiment.held_out), public


def class_count(parts: Iterable[Dataset]) -> int:
    """How many classes there are in all parts, numbered from 0."""
    return 1 + max(int(part.y.max(initial=0)) for part in parts if part.y is not None)


def check(experiment: Experiment) -> None:
    """Raise ConfigError for settings that no data can have."""
    if not 0.0 <= experiment.public < 1.0:
        raise ConfigError(f"a share of {experiment.public} of the images is public", "give 0 to below 1")
    if not 0.0 <= experiment.held_out < 1.0:
        raise ConfigError(f"held_out is {experiment.held_out}", "give a share from 0 to below 1, such as 0.2")
    if experiment.copies < 1:
        raise ConfigError(f"copies is {experiment.copies}", "give 1 or more")
    if not (experiment.unseen == -1.0 or 0.0 <= experiment.unseen <= 1.0):
        raise ConfigError(f"unseen is {experiment.unseen}", "give a share of 0 to 1")
    if experiment.options and not experiment.model:
        raise ConfigError("options are for a model, and none is named", "give --model too")


def _holdings(experiment: Experiment) -> tuple[list[Holding], Dataset | None, int]:
    """The devices, what is public, and the number of classes, even where the devices lack some."""
    check(experiment)
    clients, seed, rounds = experiment.clients, experiment.seed, experiment.rounds
    try:
        if experiment.dataset in natural.NAMES:
            _check_natural(experiment)
            stages = max(experiment.drifts, 1)
            found = natural.load(experiment.dataset, experiment.data_dir, clients, stages)
            classes = class_count(part for device in found for part in (*device.stages, device.test))
            return [natural_holding(device, rounds) for device in found], None, classes
        everything, test = images.load(experiment.dataset, experiment.data_dir, experiment.label)
        classes = class_count((everything, test))
        apart, train = public_part(everything, experiment.public, seed)
        public = apart if experiment.public else None
        if experiment.samples:
            train = _some(train, experiment)
        if experiment.drifts:
            level = str(experiment.level)
            how = (experiment.shift, level, experiment.drifts, clients, seed, train, test)
            made = drifting(*how, experiment.mode)
            if experiment.unseen >= 0.0:
                other = drifting(*how, UNSEEN)
                strange = generator(seed, "unseen").permutation(clients) < round(experiment.unseen * clients)
                made = [two if odd else one for one, two, odd in zip(made, other, strange, strict=True)]
            return [drifting_holding(device, rounds) for device in made], public, classes
        if not isinstance(experiment.level, int):
            raise ValueError(f"level {experiment.level!r} needs --drifts: without drifts, levels are 1 to 8")
        steady = make(experiment.shift, experiment.level, clients, seed, train, test)
        return (
            [
                Holding.steady(_repeated(one.train, experiment.copies), one.test, one.concept)
                for one in steady
            ],
            public,
            classes,
        )
    except (ValueError, FileNotFoundError) as fault:
        raise ConfigError(str(fault)) from None


def _repeated(data: Dataset, copies: int) -> Dataset:
    return data if copies == 1 else data.subset(np.tile(np.arange(len(data)), copies))


def _check_natural(experiment: Experiment) -> None:
    """Raises ConfigError for what says how to make devices of images, where they are there already."""
    usual = Experiment()
    unused = [name for name in natural.NOT_FOR if getattr(experiment, name) != getattr(usual, name)]
    if unused:
        raise ConfigError(
            f"{' and '.join(unused)} cannot be chosen: the devices of {experiment.dataset} differ by nature",
            "leave them out, or choose a data set of images",
        )


def _some(train: Dataset, experiment: Experiment) -> Dataset:
    """As many images as the devices need, drawn by the seed. Raises ValueError where there are too few."""
    needed = experiment.samples * experiment.clients
    if not 0 < needed <= len(train):
        raise ValueError(
            f"{experiment.clients} devices with {experiment.samples} images each need {needed}, and "
            f"{experiment.dataset} has {len(train)}: ask for fewer"
        )
    return train.subset(generator(experiment.seed, "samples").permutation(len(train))[:needed])


def drifting_holding(device: DriftingDevice, rounds: int) -> Holding:
    """A device whose stages are spread evenly over the rounds."""
    begins = changes(rounds, len(device.stages))
    return Holding(device.stage, begins, device.test, device.test_of.number)


def natural_holding(device: NaturalDevice, rounds: int) -> Holding:
    """The same of a device whose data come in time order."""
    stages = device.stages
    return Holding(lambda stage: stages[stage], changes(rounds, len(stages)), device.test, device.concept)


# -- public data --------------------------------------------------------------------------------------------


def public_part(data: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset]:
    """A share of the rows, drawn at random, and the rest in its own order."""
    chosen = np.zeros(len(data), bool)
    count = round(share * len(data))
    chosen[generator(seed, "public").permutation(len(data))[:count]] = True
    return data.subset(chosen), data.subset(~chosen)


def encoder(learner: Learner, public: Dataset, channels: int, seed: int) -> Callable[[Tensor], Tensor]:
    """The latent of a network like the learner's, trained on public images and then frozen."""
    network = learner.module(seed)
    x = np.repeat(unit(public.x), channels, axis=1) if public.x.ndim == 3 else unit(public.x)
    train(learner, network, convert(Dataset(x, public.y), torch.device("cpu")), ENCODER, seed)
    return cast(Callable[[Tensor], Tensor], network.requires_grad_(False).eval().latent)
