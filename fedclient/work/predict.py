"""Run a model on data: with the owner's learner, or with the graph that `fedclient place` fetched."""

import asyncio
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from fedclient.config import ClientConfig, LearnerConfig
from fedclient.store.state import GRAPH, DeviceFolder
from fedclient.work.data import columns_named, load_file
from fedclient.work.genuine import check_stored
from fedclient.work.predictions import Mixture, Prediction, arranged, read_mixture, read_model, write
from fedclient.work.torch_network import maker
from shoal.core.errors import ConfigError
from shoal.core.inference.network import predicted


def classify(
    settings: ClientConfig, file: Path | None, model: Path, out: Path | None, together: bool = False
) -> Prediction:
    """What the model in `model` says of `file`, or of the file of the settings, written to `out`, too.

    Without a learner, a graph is beside the model. together: with the others of its mixture, if it has some.
    Raises BadPayload when a model is not this network's, NotGenuine, LearnerFault, DataFault.
    """
    check_stored(model, DeviceFolder(settings.state).identity)
    if settings.learner is not None:
        found = _by_learner(settings, settings.learner, file, _models(model, together))
    else:
        from fedclient.light.predict import predicted as by_graph
        from fedclient.light.predict import read_graph_file

        graph = read_graph_file(model.with_name(GRAPH), model)
        with TemporaryDirectory(prefix="fedclient-predict-") as folder:
            found = asyncio.run(by_graph(settings, file, graph, _models(model, together), Path(folder)))
    if out is not None:
        write(out, found)
    return found


def _models(path: Path, together: bool) -> Mixture:
    return read_mixture(path) if together else [(1.0, read_model(path))]


def _by_learner(
    settings: ClientConfig, config: LearnerConfig, file: Path | None, models: Mixture
) -> Prediction:
    if file is None:
        if settings.data is None or settings.data.kind == "module":
            raise ConfigError("no file of data is given", "name one: fedclient predict DATA")
        file = settings.data.path
    data, regression = load_file(file, settings.data), settings.data is not None and settings.data.regression
    made = maker(config, settings.compute)
    with columns_named(file, settings.data):
        network = made()
        ours = [(share, arranged(each, network.manifest)) for share, each in models]
        found = Prediction.of(*predicted(network, ours, data, regression), regression)
    return replace(found, names=settings.data.classes) if settings.data is not None else found
