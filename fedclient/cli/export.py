"""`fedclient export`. The export itself is in `shoal/core/device_kit/tracing.py`."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedclient.cli.options import PATH, configured
from fedclient.config import ClientConfig, DataConfig, LearnerConfig
from fedclient.faults import torch_required
from shoal.core.errors import ConfigError
from shoal.shell.console import Console, Result, verb
from shoal.shell.disk import write

if TYPE_CHECKING:
    from torch import Tensor


@click.command(epilog="Example: fedclient export --learner learner.py --shape 1,28,28 --out graph.onnx")
@verb
@configured()
@click.pass_obj
@click.option("--learner", type=PATH, metavar="FILE", help="Learner.  [default: the one of the settings]")
@click.option("--shape", metavar="SIZES", help="Shape of one sample.  [default: as in the settings' data]")
@click.option(
    "--out", metavar="FILE", type=PATH, default=Path("graph.onnx"), show_default=True, help="File to write."
)
def export(
    console: Console,
    settings: ClientConfig,
    learner: Path | None,
    shape: str | None,
    out: Path,
) -> Result:
    """Write the learner's network as an ONNX graph without weights, for devices without PyTorch.

    Give the file to `fedserver run start --graph`. The graph has one input for the samples and one for each
    tensor of the network, and the outputs `scores` and, if the learner has a latent, `latent`. Before it is
    written, ONNX Runtime and PyTorch are compared on random weights and samples. This needs PyTorch, onnx,
    onnxscript and onnxruntime, on the author's machine only.
    """
    config = LearnerConfig(file=learner.absolute()) if learner else settings.learner
    if config is None:
        raise ConfigError("no learner is given", "give --learner learner.py, or --config device.yaml")
    with torch_required():
        from fedclient.work.runtime import open_learner
        from shoal.core.device_kit.tracing import export as exported
        from shoal.core.device_kit.tracing import noted
    samples = _samples(settings.data, shape)
    console.progress("exporting, and comparing ONNX Runtime with PyTorch")
    data = settings.data
    about = noted(data.divide_by, data.columns, data.classes) if data else noted()
    graph = exported(open_learner(config), samples, about)
    write(out.absolute(), graph.data)
    sizes = list(graph.sample.shape)
    facts = {
        "path": out,
        "sha256": hashlib.sha256(graph.data).hexdigest(),
        "bytes": len(graph.data),
        "shape": sizes,
        "dtype": graph.sample.dtype,
        "outputs": list(graph.outputs),
        "tensors": len(graph.weights),
    }
    made = f"{out}: {len(graph.data)} bytes, samples of shape {sizes}, outputs {' and '.join(graph.outputs)}"
    agreed = f"ONNX Runtime and PyTorch agree; {len(graph.weights)} tensors come with each model"
    return Result(facts, f"{made}\n{agreed}")


def _samples(data: DataConfig | None, shape: str | None) -> "Tensor":
    """Samples to export with: of this shape, or as in the settings."""
    import torch

    from fedclient.work.data import load
    from shoal.core.data.arrays import network_input
    from shoal.core.device_kit.tracing import sample_of

    if shape is not None:
        try:
            sizes = tuple(int(size) for size in shape.split(","))
        except ValueError:
            raise ConfigError(f"{shape!r} is no shape", "give sizes, such as 1,28,28") from None
        return sample_of(sizes)
    if data is None:
        raise ConfigError("the shape of a sample is not known", "give --shape, such as 1,28,28, or --config")
    return torch.from_numpy(network_input(load(data, labels=False).train.x[:2]))
