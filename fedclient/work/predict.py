"""Run a model on data, with PyTorch. `fedclient/light/predict.py` does the same without."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fedclient.config import ClientConfig
from fedclient.work.data import columns_named, load_file
from fedclient.work.predictions import Mixture, Prediction, read_mixture, read_model, write
from fedclient.work.runtime import open_learner, settle_torch
from shoal.core.data.dataset import Dataset
from shoal.core.data.scale import scale_of
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.evaluation.evaluate import class_scores
from shoal.core.device_kit.evaluation.regression import explained, predictions
from shoal.core.device_kit.learner import Learner, authors, manifest_of_network
from shoal.core.device_kit.samples import Samples
from shoal.core.device_kit.scaling import outputs
from shoal.core.errors import ConfigError
from shoal.core.inference.network import mean_of
from shoal.core.types import Array, Tensors


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
    context = DeviceContext(
        learner, Views(data, data.subset(slice(0, 0))), device, 0, np.random.default_rng()
    )

    def said(model: Tensors) -> Array:
        context.use_scale_of(model)
        samples = context.samples("train")
        order = [spec.name for spec in manifest_of_network(context.model) if spec.name in model]
        network = context.load({name: model[name] for name in [*order, *sorted(set(model) - set(order))]})
        network.eval()
        found = []
        for rows in samples.passes():
            x = samples.x[rows]
            with torch.no_grad(), authors("network", network, x):
                given = predictions(network, x) if regression else class_scores(network, x, 0)
                given = outputs(given, scale_of(model))
            found.append((given.float() if regression else torch.softmax(given.float(), 1)).cpu().numpy())
        return np.concatenate(found)

    found = mean_of(models, said)
    if regression:
        return _numbers(found, context.samples_as_they_are("train"))
    probabilities = found
    classes = probabilities.argmax(1)
    accuracy = None if data.y is None else float((classes == data.y).mean())
    return Prediction(classes, probabilities, accuracy)


def _numbers(values: Array, samples: Samples) -> Prediction:
    accuracy = None
    if samples.targets is not None:
        error = float((torch.from_numpy(values) - samples.targets.cpu()).double().square().mean())
        accuracy = explained(error, samples.targets)
    return Prediction(
        np.zeros(len(values), np.int64), np.ones((len(values), 1), np.float32), accuracy, values
    )
