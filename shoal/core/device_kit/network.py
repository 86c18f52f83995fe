"""A learner's network as the rest of the library uses it: arrays in, arrays out. And what is latent in it."""

import torch
from torch import Tensor, nn

from shoal.core.data.scale import scale_of
from shoal.core.device_kit.learner import (
    Latent,
    Learner,
    authors,
    load_weights,
    manifest_of_network,
    shape_of,
)
from shoal.core.device_kit.samples import PASS
from shoal.core.device_kit.scaling import inputs, outputs
from shoal.core.errors import LearnerFault, near
from shoal.core.exchange.tensors import Manifest, own_of
from shoal.core.types import Array, Tensors


class TorchNetwork:
    """A `shoal.core.inference.network.Network` around a module of this learner, on `device`, in evaluation
    mode and without gradients."""

    batch = PASS

    def __init__(self, learner: Learner, module: nn.Module, device: torch.device) -> None:
        self.name, self.classifier = learner.name, not (learner.loss or learner.evaluate)
        self._learner, self._module, self._device = learner, module, device
        self._scale: Tensors = {}

    @property
    def manifest(self) -> Manifest:
        return own_of(manifest_of_network(self._module))

    def load(self, weights: Tensors) -> None:
        load_weights(self._module, weights)
        self._scale = scale_of(weights)

    def scores(self, x: Array) -> Array:
        samples = self._samples(x)
        with torch.no_grad(), authors("network", self._module, samples):
            found: object = self._module(samples)
        if not isinstance(found, Tensor):
            raise LearnerFault(
                f"the network gives {shape_of(found)} for {len(x)} samples, not class scores ({len(x)}, C)",
                "provide a loss() and an evaluate() if it is not a classifier",
            )
        scores: Array = outputs(found, self._scale).cpu().numpy()
        return scores

    def latents(self, x: Array) -> Array:
        samples, latent = self._samples(x), latent_of(self._learner, self._module)
        with torch.no_grad(), authors("latent", self._module, samples):
            found: object = latent(self._module, samples)
        if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != len(x):
            raise LearnerFault(
                f"the latent of {len(x)} samples has {shape_of(found)}, not ({len(x)}, v)",
                "end latent() with .flatten(1)",
            )
        latents: Array = found.cpu().numpy()
        return latents

    def _samples(self, x: Array) -> Tensor:
        """In the scale of the model. It is a copy: authors may compute in place, and torch's own memory is
        always aligned alike, by which its routines may differ."""
        self._module.eval()  # each time, since the module is trained in between
        return inputs(torch.tensor(x, device=self._device), self._scale)


def has_latent(learner: Learner, model: nn.Module, x: Tensor) -> bool:
    """Whether the learner, or its network, says what is latent, or the network has a last linear layer.

    x: a batch by which that is tried. Afterwards the network is in evaluation mode.
    """
    if _is_said(learner, model):
        return True
    model.eval()
    try:
        with torch.no_grad():
            _before_last_layer(learner, model, x)
    except (Exception, SystemExit):  # whatever else the network does not take, its next use says
        return False
    return True


def _is_said(learner: Learner, model: nn.Module) -> bool:
    return learner.latent is not None or callable(getattr(model, "latent", None))


def latent_and_scores(learner: Learner, model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The latent (B, v) and what the network gives, of one batch. Raises LearnerFault."""
    if not _is_said(learner, model):
        return _before_last_layer(learner, model, x)
    if not isinstance(learner.latent, str):
        return latent_of(learner, model)(model, x), model(x)
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


def latent_of(learner: Learner, model: nn.Module) -> Latent:
    """What describes a sample: what the author names, or else what goes into the last linear layer."""
    if isinstance(learner.latent, str):
        return _output_of(learner.latent, model)
    if learner.latent is not None:
        return learner.latent
    own = getattr(model, "latent", None)
    if not callable(own):
        return lambda model, x: _before_last_layer(learner, model, x)[0]
    return lambda model, x: own(x)


def _before_last_layer(learner: Learner, model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """What goes into the linear layer that is called last, as (B, v), and what the network gives.

    Of the layers in the order in which they are called, since a network may name its head first.
    """
    seen: list[Tensor] = []

    def keep(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen[:] = [inputs[0].clone()]  # a copy: a later operation in place would change it

    linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    handles = [layer.register_forward_pre_hook(keep) for layer in linear]
    try:
        scores: Tensor = model(x)
    finally:
        for handle in handles:
            handle.remove()
    if not seen or len(seen[0]) != len(x):
        parts = ", ".join(name for name, _ in model.named_children())
        raise LearnerFault(
            f"{learner.name} has no latent, and none is found before a last linear layer",
            f'say latent = "name of a submodule"{f" ({parts})" if parts else ""}, or def latent(model, x)',
        )
    return seen[0].flatten(1), scores


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
