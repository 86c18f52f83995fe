"""A learner as an ONNX graph without weights: for ONNX files of a run's models, and devices without PyTorch.

Besides PyTorch it needs onnx and onnxruntime, which come with devices that train; and onnxscript for the
newer exporter, which comes with the extra `export`.
"""

import io
import json
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor, nn

from shoal.core.device_kit.learner import Learner, authors, tensors_of
from shoal.core.device_kit.network import has_latent, latent_and_scores
from shoal.core.errors import BadPayload, ConfigError, LearnerFault, Missing, ShoalError
from shoal.core.exchange.tensors import manifest_of
from shoal.core.inference.graph.binding import bound, without_weights
from shoal.core.inference.graph.model import (
    EMBEDDING,
    LATENT,
    SAMPLES,
    SCORES,
    Graph,
    read_encoder,
    read_graph,
)
from shoal.core.types import Tensors

TRIED = (1, 7, 64)
"""Samples at a time in the comparison: a network that was recorded for one number may fail for another."""
CLOSE = 1e-4
"""How far the runtime's results may be from PyTorch's, relative to the largest of them."""
OPSET = 17
INSTALL = "pip install onnx onnxscript onnxruntime"
FATAL = 4
"""The severity from which on ONNX Runtime writes to standard error."""
MAX_MODEL = 1 << 28
"""Bytes of the weights of a network that is exported: a file of ONNX has at most 2 GiB, and the comparison
needs several copies of them."""


class _Both(nn.Module):
    """Scores and, where the learner has one, the latent of one batch."""

    def __init__(self, learner: Learner, model: nn.Module, described: bool) -> None:
        super().__init__()
        self.learner, self.model, self.described = learner, model, described

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        if not self.described:
            return (self.model(x),)
        latent, scores = latent_and_scores(self.learner, self.model, x)
        return scores, latent


def export(learner: Learner, x: Tensor, facts: Mapping[str, str], older_only: bool = False) -> Graph:
    """The graph of a learner's network, compared with PyTorch on random weights before it is returned.

    x: one or more samples, (n, ...), of the type and shape that the devices have; only those matter. facts:
    what people should know, such as the preprocessing. older_only: do not try PyTorch's newer exporter, which
    takes ten times as long, where the older one fails.

    Raises LearnerFault where the network cannot be exported, or where the runtime computes something else;
    Missing where a package is not installed.
    """
    _check_installed()
    model = learner.module(seed=0).eval()
    size = sum(each.nbytes for each in model.state_dict().values())
    if size > MAX_MODEL:
        raise LearnerFault(f"{learner.name} has {size} bytes of weights, too many for an ONNX graph")
    # Exporters merge tensors that are equal, as fresh ones of batch norm are; these would lose their names.
    for number, tensor in enumerate(model.state_dict().values()):
        if tensor.is_floating_point():
            tensor.copy_(0.5 + torch.rand(tensor.shape, generator=torch.Generator().manual_seed(number)) / 4)
    described = has_latent(learner, model, x)
    both, outputs = _Both(learner, model, described).eval(), [SCORES, LATENT][: 1 + described]
    classifier = not (learner.loss or learner.evaluate)
    about = {"learner": learner.name, "classifier": "yes" if classifier else "no", **facts}
    faults: list[ShoalError] = []
    for way in (_traced,) if older_only or find_spec("onnxscript") is None else (_traced, _captured):
        try:
            with authors("export", model, x):
                exported = way(both, x, outputs)
                weights = manifest_of(tensors_of(model))
                graph = read_graph(without_weights(exported, weights, "model.", about))
                _compare(graph, both, x)
        except (LearnerFault, BadPayload) as fault:
            faults.append(fault)
        else:
            return graph
    raise LearnerFault(
        f"{learner.name} cannot be exported: {'; by the newer exporter: '.join(f.message for f in faults)}",
        faults[0].hint,
    )


def _check_installed() -> None:
    if missing := [name for name in ("onnx", "onnxruntime") if find_spec(name) is None]:
        raise Missing(f"an export needs {' and '.join(missing)}", INSTALL)


class _Encoder(nn.Module):
    """A learner's frozen encoder as a network, whatever it is."""

    def __init__(self, learner: Learner) -> None:
        super().__init__()
        self.encoder = learner.encoder

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        assert self.encoder is not None
        return (self.encoder(x),)


def encoder(learner: Learner, x: Tensor) -> Graph | None:
    """The learner's frozen encoder as a graph with its weights, compared with PyTorch; None if it has none.

    x: as in `export`. Raises LearnerFault where it cannot be traced or is too large, and Missing.
    """
    if learner.encoder is None:
        return None
    _check_installed()
    model = _Encoder(learner).cpu().eval()
    try:
        with authors("encoder()"), torch.no_grad():
            traced = _traced(model, x, [EMBEDDING])
            graph = read_encoder(without_weights(traced, (), "", {"learner": learner.name}))
            _compare_on(graph, {}, model, x)
    except BadPayload as bad:
        raise LearnerFault(f"{learner.name}: the encoder cannot be traced: {bad.message}", bad.hint) from None
    return graph


def _traced(both: nn.Module, x: Tensor, outputs: list[str]) -> bytes:
    """By PyTorch's older exporter, which records what is computed: short graphs, and few demands."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            both,
            (x,),
            file,  # type: ignore[arg-type]
            input_names=[SAMPLES],
            output_names=outputs,
            dynamic_axes={name: {0: "batch"} for name in (SAMPLES, *outputs)},
            opset_version=OPSET,
            do_constant_folding=False,
            training=torch.onnx.TrainingMode.PRESERVE,
            dynamo=False,
        )
    return file.getvalue()


def _captured(both: _Both, x: Tensor, outputs: list[str]) -> bytes:
    """By PyTorch's newer exporter, which follows shapes that depend on the batch."""
    file = io.BytesIO()
    batch = torch.export.Dim("batch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            both,
            (x,),
            input_names=[SAMPLES],
            output_names=outputs,
            dynamic_shapes=({0: batch},),
            dynamo=True,
            optimize=False,
            verbose=False,
        )
    assert program is not None
    program.save(file)  # type: ignore[arg-type]
    return file.getvalue()


def _compare(graph: Graph, both: _Both, x: Tensor) -> None:
    """Raise LearnerFault unless ONNX Runtime and PyTorch agree on random weights and samples."""
    weights = tensors_of(both.learner.module(seed=1))
    both.model.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    _compare_on(graph, weights, both, x)


def _compare_on(graph: Graph, weights: Tensors, both: nn.Module, x: Tensor) -> None:
    """Raise LearnerFault unless they agree on these weights and random samples."""
    import onnxruntime

    chance = torch.Generator().manual_seed(1)
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = FATAL, 1
    try:
        session = onnxruntime.InferenceSession(bound(graph, weights), options, ["CPUExecutionProvider"])
    except Exception as error:  # the runtime has errors of its own, which are no classes of Python's
        raise LearnerFault(f"ONNX Runtime refuses the graph: {str(error)[:200]}") from None
    for count in TRIED:
        shape = (count, *x.shape[1:])
        some = torch.rand(shape, generator=chance) if x.is_floating_point() else x[:1].expand(shape)
        with torch.no_grad():
            wanted = [each.numpy() for each in both(some)]
        for name, found, right in zip(
            graph.outputs, session.run(list(graph.outputs), {SAMPLES: some.numpy()}), wanted, strict=True
        ):
            most = CLOSE * max(1.0, float(np.abs(right).max()))
            if found.shape != right.shape or not np.abs(found - right).max() <= most:
                raise LearnerFault(
                    f"the exported graph computes other {name} than the learner, for {count} samples",
                    "avoid Python numbers that depend on the batch, such as x.shape[0]",
                )


def sample_of(shape: tuple[int, ...]) -> Tensor:
    """Two samples of this shape, to export with. Raises ConfigError."""
    if not shape or any(size < 1 for size in shape):
        raise ConfigError(f"{list(shape)} is no shape of a sample", "give one such as 1,28,28")
    return torch.zeros(2, *shape)


def noted(
    divide_by: float | None = None, columns: Sequence[str] = (), classes: Sequence[str] | None = None
) -> dict[str, str]:
    """What a user of the models has to know of the data: the preprocessing, and the names of the classes."""
    steps = [
        f"values are divided by {divide_by:g}"
        if divide_by
        else "bytes are divided by 255; other numbers are taken as they are",
        *([f"columns {', '.join(columns)}, in this order"] if columns else []),
    ]
    return {"preprocessing": "; ".join(steps), **({"classes": json.dumps(list(classes))} if classes else {})}
