"""The latents of samples under a model: what the learner calls latent, batch by batch, and their bounds."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from shoal.core.device_kit.evaluation.evaluate import shape_of
from shoal.core.device_kit.learner import Latent, Learner, authors
from shoal.core.device_kit.samples import Samples
from shoal.core.device_kit.training.slots import Rows, blocks, slots_of
from shoal.core.errors import BadPayload, LearnerFault, diverged, near
from shoal.core.exchange.parts import LatentBounds

DESCRIBED = 64
"""Slots of a block of samples whose latents are released: more than in training, as no gradients are kept."""


def latents(learner: Learner, model: nn.Module, samples: Samples) -> Iterator[Tensor]:
    """Latents (B, v) of all samples in order, in evaluation mode and without gradients, where the model is.

    Raises LearnerFault when there is no latent, or it is not (B, v), or the author's code fails.
    """
    latent = _latent_of(learner, model)
    for rows in samples.passes():
        yield _of_batch(latent, model, samples.x[rows])


def latents_apart(
    learner: Learner, model: nn.Module, samples: Samples, rows: Rows
) -> Iterator[tuple[Tensor, Tensor]]:
    """Latents (S, v) of the samples with these numbers, block by block, and the (S,) number of each, or -1.

    For what has a guarantee: no sample changes the latents of another (`training.slots`). They
    come in no particular order. Raises as `latents` does.
    """
    latent = _latent_of(learner, model)
    for block in blocks(samples, slots_of(samples, DESCRIBED), rows, DESCRIBED):
        yield _of_batch(latent, model, block.x), block.rows


def _of_batch(latent: Latent, model: nn.Module, x: Tensor) -> Tensor:
    model.eval()  # at each batch, since the caller may use the model in between
    with torch.no_grad(), authors("latent", model, x):
        value: object = latent(model, x)
    if not isinstance(value, Tensor) or value.ndim != 2 or len(value) != len(x):
        raise LearnerFault(
            f"the latent of {len(x)} samples has {shape_of(value)}, not ({len(x)}, v)",
            "end latent() with .flatten(1)",
        )
    return value


def width(learner: Learner, model: nn.Module, samples: Samples) -> int:
    """v, the number of latent values, which reveals nothing about the data. Raises as `latents` does."""
    return int(next(latents(learner, model, samples)).shape[1])


def bounds(batches: Iterable[Tensor], per: str) -> tuple[LatentBounds, int]:
    """Lowest and highest latent value: one pair (per "scalar"), or one for each coordinate ("coordinate").

    The second result is v, the number of coordinates, which one pair does not reveal.

    batches: (B, v) each, at least one. The bounds are raw: they reveal values of real records.
    FLUX appendix C.1.1, step S1, has one pair for each coordinate.

    Raises BadPayload for another `per`, Diverged for latents that are NaN or infinite.
    """
    if per not in ("scalar", "coordinate"):
        raise BadPayload(f"there are no bounds {per!r}", near(per, ["scalar", "coordinate"]))
    extremes = [torch.stack(torch.aminmax(batch, dim=0)) for batch in batches]
    low = torch.stack([pair[0] for pair in extremes]).amin(0).double().cpu().numpy()
    high = torch.stack([pair[1] for pair in extremes]).amax(0).double().cpu().numpy()
    if not (np.isfinite(low).all() and np.isfinite(high).all()):  # NaN goes through every minimum
        raise diverged("some latents are NaN or infinite")
    width = len(low)
    if per == "scalar":
        low, high = low.min(keepdims=True), high.max(keepdims=True)
    return LatentBounds(low, high, "raw"), width


def has_latent(learner: Learner, model: nn.Module) -> bool:
    """Whether the learner, or its network, says what is latent."""
    return learner.latent is not None or callable(getattr(model, "latent", None))


def latent_and_scores(learner: Learner, model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The latent (B, v) and what the network gives, of one batch. Raises LearnerFault."""
    if not isinstance(learner.latent, str):
        return _latent_of(learner, model)(model, x), model(x)
    _output_of(learner.latent, model)  # a wrong name shows here
    seen: list[Tensor] = []
    # A copy: a later operation in place would change what was seen.
    handle = model.get_submodule(learner.latent).register_forward_hook(
        lambda module, inputs, output: seen.append(output.clone())
    )
    try:
        scores: Tensor = model(x)
    finally:
        handle.remove()
    return seen[0].flatten(1), scores


def _latent_of(learner: Learner, model: nn.Module) -> Latent:
    if isinstance(learner.latent, str):
        return _output_of(learner.latent, model)
    if learner.latent is not None:
        return learner.latent
    own = getattr(model, "latent", None)
    if not callable(own):
        raise LearnerFault(
            f"{learner.name} has no latent", 'add latent = "name of a submodule", or def latent(model, x)'
        )
    return lambda model, x: own(x)


class _Seen(Exception):
    """The submodule has given its output: the rest of the network need not run."""


def _output_of(name: str, model: nn.Module) -> Latent:
    """The output of the submodule `name` at its first call, flattened to (B, v)."""
    parts = dict(model.named_modules())
    if name not in parts:
        raise LearnerFault(
            f"the network has no submodule {name!r}", near(name, [known for known in parts if known])
        )

    def latent(model: nn.Module, x: Tensor) -> Tensor:
        seen: list[object] = []

        # Stopping here also keeps a later in-place operation from changing what was seen.
        def keep(module: nn.Module, inputs: object, output: object) -> None:
            seen.append(output)
            raise _Seen

        handle = parts[name].register_forward_hook(keep)
        try:
            model(x)
        except _Seen:
            pass
        finally:
            handle.remove()
        if not seen or not isinstance(seen[0], Tensor):
            what = "was not called" if not seen else f"gave {shape_of(seen[0])}, not a tensor"
            raise LearnerFault(
                f"submodule {name!r} {what}", "name one that forward() calls and that gives a tensor"
            )
        return seen[0].flatten(1)

    return latent
