"""By what the devices of a fleet describe their data, kept for later runs: a description is paid for once for
a fleet, and not once for a run.

A device gives a release again, which costs nothing, where it is asked for the same: by the same encoder and
projector, with the same guarantee and the same classes (`shoal.core.privacy.ledger`). So a run whose devices
have described their data has a `basis` in its state, and a later run that may use it begins with it.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar, cast

from shoal.core.algorithm.training import scales_inputs
from shoal.core.data.scale import scale_of, with_scale
from shoal.core.exchange.parts import PrivacySettings
from shoal.core.exchange.tensors import Manifest, digest, manifest_of, own_of
from shoal.core.types import Tensors

S = TypeVar("S")


@dataclass(frozen=True, eq=False)
class Basis:
    """encoder: the frozen model that describes data. projector: as in `Train`, made of public numbers, `dims`
    of them. privacy: a guarantee. classes: U, of the run's labels."""

    encoder: Tensors
    projector: Tensors
    privacy: PrivacySettings
    classes: int
    dims: int

    @classmethod
    def of(cls, encoder: Tensors, projector: Tensors, parameters: Any) -> "Basis | None":
        """That of a run with these parameters; None where its descriptions have no guarantee, and so cost
        nothing."""
        asked = parameters.asked_privacy
        if not asked.calibrated:
            return None
        return cls(encoder, projector, asked, parameters.classes, parameters.dims)

    @cached_property
    def names(self) -> tuple[str, str]:
        """SHA-256 of the encoder and of the projector, as a device's ledger has them."""
        return digest(self.encoder), digest(self.projector)

    @property
    def network(self) -> Manifest:
        """The tensors of the network by which data are described."""
        return _network(self.encoder)

    def suits(self, parameters: Any) -> bool:
        """Whether a run with these parameters asks for the same descriptions, if its network is the same."""
        asked = getattr(parameters, "asked_privacy", None)
        if asked != self.privacy:
            return False
        return parameters.classes in (0, self.classes) and parameters.dims == self.dims


def basis_of(state: Any) -> Basis | None:
    """By what the devices of a run describe their data with a guarantee; None if that is not known yet, or
    never will be."""
    found: Basis | None = getattr(state, "basis", None)
    return found


def begun_with(state: S, *bases: Basis) -> S:
    """The first state of a run, with the first of these bases of earlier runs that is of the same network.

    Its encoder brings the scale of the inputs, too, for which such a run does not ask its devices. Models
    that have none get it here: their first round of training is not to be the only one in raw units.
    """
    if not hasattr(state, "basis"):
        return state
    models: Any = state.models  # type: ignore[attr-defined]
    networks = [_network(model) for model in models.values()]
    fitting = (each for each in bases if all(found == each.network for found in networks))
    found: Any = replace(state, basis=next(fitting, None))  # type: ignore[type-var]
    scale = scale_of(found.basis.encoder) if found.basis and scales_inputs(found.parameters) else {}
    if not scale or any(map(scale_of, models.values())):
        return cast(S, found)
    made = {id(model): with_scale(model, scale) for model in models.values()}  # one that is shared stays one
    return cast(S, replace(found, models={key: made[id(model)] for key, model in models.items()}))


def _network(model: Tensors) -> Manifest:
    """The network's own tensors, without a scale of its inputs; none of them is read."""
    return own_of(manifest_of(model))
