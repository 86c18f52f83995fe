"""Run a model on data, with PyTorch. `fedclient/light/predict.py` does the same without."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from fedclient.config import ClientConfig
from fedclient.work.data import columns_named, load_file
from fedclient.work.predictions import Mixture, Prediction, read_mixture, read_model, write
from fedclient.work.runtime import open_learner, settle_torch
from shoal.core.data.dataset import Dataset
from shoal.core.device_kit.context import choose_device
from shoal.core.device_kit.learner import Learner
from shoal.core.device_kit.network import TorchNetwork
from shoal.core.errors import ConfigError
from shoal.core.inference.network import predicted
from shoal.core.types import Tensors


def classify(
    settings: ClientConfig, file: Path | None, model: Path, out: Path | None, together: bool = False
) -> Prediction:
    """Run the model of `model` on `file`, or on the file of the settings; write what comes out to `out`.

    together: with the others of its mixture, if it has some.
    """
    if settings.learner is None:
        raise ConfigError("no learner is given", "set `learner`, for example learner: {file: learner.py}")
    if file is None:
        if settings.data is None or settings.data.kind == "module":
            raise ConfigError("no file of data is given", "name one: fedclient predict DATA")
        file = settings.data.path
    models: Mixture = read_mixture(model) if together else [(1.0, read_model(model))]
    data = load_file(file, settings.data)
    settle_torch(settings.compute)
    with columns_named(file, settings.data):
        regression = settings.data is not None and settings.data.regression
        learner = open_learner(settings.learner)
        found = predict(learner, models, data, settings.compute.device, regression)
    if settings.data is not None:
        found = replace(found, names=settings.data.classes)
    if out is not None:
        write(out, found)
    return found


def predict(
    learner: Learner, models: Mixture, data: Dataset, device: str, regression: bool = False
) -> Prediction:
    """What the models say of the data. device: "auto", "cpu" or "cuda". regression: they predict numbers.

    Raises BadPayload when a model is not this learner's, LearnerFault, DataFault.
    """
    where = choose_device(device)
    network = TorchNetwork(learner, learner.module(seed=0).to(where), where)
    place = {spec.name: number for number, spec in enumerate(network.manifest)}

    def arranged(model: Tensors) -> Tensors:
        """A file has its tensors in an order of its own."""
        return {
            name: model[name] for name in sorted(model, key=lambda name: (place.get(name, len(place)), name))
        }

    found, accuracy = predicted(
        network, [(share, arranged(model)) for share, model in models], data, regression
    )
    if not regression:
        return Prediction(found.argmax(1), found, accuracy)
    ones = np.ones((len(found), 1), np.float32)
    return Prediction(np.zeros(len(found), np.int64), ones, accuracy, found)
