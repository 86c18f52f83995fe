"""The state of a FEROMA run: one frozen value, which is also its checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from shoal.core.algorithm import Basis
from shoal.core.algorithms.feroma import Parameters
from shoal.core.exchange.parts import Descriptor, LatentBounds
from shoal.core.server_kit.clustered import Clustered
from shoal.core.server_kit.descriptors import BlockScaler, too_few
from shoal.core.types import DeviceId, ModelKey, Scalar, Tensors


@dataclass(frozen=True, eq=False)
class Row:
    """A profile that has a model. Its key reveals nothing about the device, because newcomers see it.

    profile: of the data that the model was last trained on. examples: their number. round: of training, from
    1. device: the owner, at the end the first of those that share the model; "" for a distribution that no
    device has any more.
    held_back: whether its last update does not count in others' models, for its length or direction.
    """

    profile: Descriptor
    examples: int
    round: int
    device: DeviceId = ""
    held_back: bool = False


@dataclass(frozen=True, eq=False)
class Encoder:
    """The model that describes data after the warm-up. scaler: fitted to the first profiles; None before."""

    model: Tensors
    projector: Tensors
    scaler: BlockScaler | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """phase: train, bounds, profile, mixed, evaluate or done.

    models: that of the warm-up, and one for each of `rows`, in the file in which its device reported it, so
    that memory does not hold the models of all devices. sources: at the end, the models that the served
    mixtures are made of.
    profiles: of the devices that described themselves in this round, or last before the end. starts: the
    models and weights that each of them is to train from. made: how many keys have been used. basis: at the
    start that of an earlier run, if any; and once there is an encoder, this run's. undescribed: the devices
    that last answered with too few samples for a profile with the run's guarantee.
    """

    GOES_ON_IN: ClassVar[str] = "profile"

    parameters: Parameters
    bounds: LatentBounds | None = None
    latents: int = 0
    encoder: Encoder | None = None
    rows: Mapping[ModelKey, Row] = field(default_factory=dict)
    profiles: Mapping[DeviceId, Descriptor] = field(default_factory=dict)
    starts: Mapping[DeviceId, Mapping[ModelKey, float]] = field(default_factory=dict)
    made: int = 0
    sources: Mapping[ModelKey, Tensors] = field(default_factory=dict)
    basis: Basis | None = None
    undescribed: tuple[DeviceId, ...] = ()

    def again(self, parameters: Parameters) -> "State":
        """See `Clustered`. No row is older than the run."""
        rows = {key: replace(row, round=0) for key, row in self.rows.items()}
        parameters = parameters.going_on_from(self.parameters)
        return replace(super().again(parameters), rows=rows, profiles={}, starts={}, sources={})

    @property
    def facts(self) -> Mapping[str, Scalar]:
        if not self.rows:
            return {}
        return {"profiles": len(self.rows), "kept": sum(not row.device for row in self.rows.values())}

    @property
    def remarks(self) -> Sequence[str]:
        if not (few := [device for device in self.undescribed if not self.own(device)]):
            return super().remarks
        what = too_few(few, self.parameters.asked_privacy.epsilon)
        hint = "privacy=off finds one at any size, and a larger epsilon (privacy=explicit) with fewer samples"
        return (f"{what}, and no model for data like theirs: {hint}", *super().remarks)

    @property
    def descriptors(self) -> Mapping[DeviceId, Descriptor]:
        """What the devices have released, for the map of the run's history."""
        return {row.device: row.profile for row in self.rows.values() if row.device} | dict(self.profiles)

    def own(self, device: DeviceId) -> ModelKey:
        """The key of a device's own row, "" if it has none."""
        key = self.assignments.get(device, "")
        return key if key in self.rows and self.rows[key].device == device else ""
