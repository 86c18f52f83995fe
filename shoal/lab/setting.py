"""The scene of an experiment: what its devices hold, how they differ, and a network that fits their data."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shoal.core.data.dataset import Dataset
from shoal.core.device_kit.learner import Learner, builtin
from shoal.core.errors import ConfigError
from shoal.core.seeds import generator
from shoal.lab.datasets import images, natural
from shoal.lab.fleet import Holding
from shoal.lab.pretrain import public_part
from shoal.lab.shifts import drifting, make

if TYPE_CHECKING:
    from shoal.lab.experiment import Experiment


def setting(experiment: "Experiment") -> dict[str, Any]:
    """How the devices differ, and how they change."""
    if experiment.dataset in natural.NAMES:
        return {"shift": "natural", "level": "", "drifts": experiment.drifts, "mode": "in time order"}
    mode = experiment.mode if experiment.drifts else ""
    return {"shift": experiment.shift, "level": experiment.level, "drifts": experiment.drifts, "mode": mode}


def holdings_of(experiment: "Experiment") -> tuple[list[Holding], Dataset | None]:
    """The devices' data, and what is public. Raises ConfigError."""
    if not 0.0 <= experiment.public < 1.0:
        raise ConfigError(f"a share of {experiment.public} of the images is public", "give 0 to below 1")
    if experiment.options and not experiment.model:
        raise ConfigError("options are of a model, and none is named", "give --model too")
    clients, seed, rounds = experiment.clients, experiment.seed, experiment.rounds
    try:
        if experiment.dataset in natural.NAMES:
            _check_natural(experiment)
            stages = max(experiment.drifts, 1)
            found = natural.load(experiment.dataset, experiment.data_dir, clients, stages)
            return [Holding.natural(device, rounds) for device in found], None
        everything, test = images.load(experiment.dataset, experiment.data_dir)
        apart, train = public_part(everything, experiment.public, seed)
        public = apart if experiment.public else None
        if experiment.samples:
            train = _some(train, experiment)
        if experiment.drifts:
            level = str(experiment.level)
            made = drifting(
                experiment.shift, level, experiment.drifts, clients, seed, train, test, experiment.mode
            )
            return [Holding.drifting(device, rounds) for device in made], public
        if not isinstance(experiment.level, int):
            raise ValueError(f"level {experiment.level!r} needs --drifts: without, levels are 1 to 8")
        steady = make(experiment.shift, experiment.level, clients, seed, train, test)
        return [Holding.steady(device) for device in steady], public
    except (ValueError, FileNotFoundError) as fault:
        raise ConfigError(str(fault)) from None


def _check_natural(experiment: "Experiment") -> None:
    """Raises ValueError for what is asked of images, where there are none."""
    unused = [name for name in ("samples", "public", "model") if getattr(experiment, name)]
    if unused:
        raise ValueError(f"{experiment.dataset} is not of images: {' and '.join(unused)} cannot be chosen")


def _some(train: Dataset, experiment: "Experiment") -> Dataset:
    """As many images as the devices are to have, drawn by the seed. Raises ValueError where they lack."""
    due = experiment.samples * experiment.clients
    if not 0 < due <= len(train):
        raise ValueError(
            f"{experiment.clients} devices with {experiment.samples} images each need {due}, and "
            f"{experiment.dataset} has {len(train)}: ask for fewer"
        )
    return train.subset(generator(experiment.seed, "samples").permutation(len(train))[:due])


def learner_for(experiment: "Experiment", data: Dataset, classes: int) -> Learner:
    """LeNet-5 as in the papers; small networks for small images, for windows of readings, and for rows; or
    what is asked for."""
    if data.x.ndim == 2:
        return builtin("mlp", {"inputs": data.x.shape[1], "hidden": (32, 16), "classes": classes})
    if data.x.ndim == 3:
        return builtin("cnn1d", {"channels": data.x.shape[1], "length": data.x.shape[2], "classes": classes})
    channels, size = data.x.shape[1], data.x.shape[2]
    if experiment.model:
        image = {"channels": channels, "size": size}
        own = {"inputs": channels * size * size} if experiment.model == "mlp" else image
        return builtin(experiment.model, {**own, **experiment.options})
    if size < 28:
        return builtin("mlp", {"inputs": channels * size * size, "hidden": (64,), "classes": classes})
    return builtin("lenet5", {"channels": channels, "size": size, "classes": classes})


def classes_of(holdings: Sequence[Holding]) -> int:
    """How many classes there are; ten in all image sets, whoever lacks some."""
    labels = [each.test.y for each in holdings if each.test.y is not None]
    return 10 if holdings[0].test.x.ndim == 4 else 1 + max(int(own.max()) for own in labels)
