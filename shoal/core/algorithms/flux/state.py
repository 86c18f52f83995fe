"""The state of a FLUX run: one frozen value, which is also its checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from shoal.core.algorithm import APART, LASTING, Basis
from shoal.core.algorithms.flux import Parameters
from shoal.core.exchange.parts import Descriptor, FloatArray, LatentBounds
from shoal.core.server_kit.aggregation.pooling import Pooling
from shoal.core.server_kit.clustered import Clustered
from shoal.core.server_kit.clustering.loss_jumps import Moving
from shoal.core.server_kit.descriptors import BlockScaler, too_few
from shoal.core.types import DeviceId, ModelKey, Scalar, Tensors

Kept = tuple[tuple[ModelKey, Descriptor], ...]
"""Clusters without devices, and for each the descriptor of one that it had."""


@dataclass(frozen=True, eq=False)
class Clustering:
    """The result of the clustering round, and everything that placing another device requires.

    encoder: the frozen global model that describes data. projector: as in `Train`.
    described: every device's descriptor. vectors: the same, scaled, (2 (U+1) l,).
    centroids: (M, 2 (U+1) l), one row for each of `names`.
    reach: (M,), the clusters' radii in the measure by which newcomers are placed; see
    `shoal.core.server_kit.clustering.assign.radii`.
    noise: (M, 2 (U+1) l), variances of the privacy noise in the centroids; None without a guarantee. Where a
    cluster knows nothing of a class, its noise is infinite and the centroid is a placeholder.
    classless: how many devices of the clustering round released no classes. kin: as
    `shoal.core.exchange.choosing.ClusterDensities` has it, one for each of `names`. kept: those of `names`
    that no device has any more, see `shoal.core.algorithms.flux.clustering.regrouped`.
    """

    round: int
    encoder: Tensors
    projector: Tensors
    scaler: BlockScaler
    names: tuple[ModelKey, ...]
    vectors: Mapping[DeviceId, FloatArray]
    centroids: FloatArray
    reach: FloatArray
    noise: FloatArray | None = None
    described: Mapping[DeviceId, Descriptor] = field(default_factory=dict)
    classless: int = 0
    kin: tuple[int, ...] = ()
    kept: Kept = ()

    @property
    def label_free(self) -> int:
        """The number of leading coordinates that a device without labels can give: 2 l."""
        return 2 * self.scaler.width


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """phase: train, measure, bounds, cluster, clustered, watch, undescribed, evaluate or done.

    progress: the number of completed rounds of training. accuracies: of the global model after each measured
    round, by round. spent: by device, see `shoal.core.server_kit.aggregation.noised.charged`.
    drift: a remark for each time that clusters were formed again, or given up, because data had drifted.
    pooling, moving: since the clusters were formed. begun: for each cluster that a late joiner began, the one
    whose model it continued. undescribed: the devices with too few samples for a descriptor with the
    guarantee. by_updates: whether updates have decided the groups.
    basis: at the start that of an earlier run, if any; and from the forming of the clusters on this run's.
    """

    GOES_ON_IN: ClassVar[str] = "watch"

    parameters: Parameters
    accuracies: Mapping[str, float] = field(default_factory=dict)
    bounds: LatentBounds | None = None
    latents: int = 0
    clustering: Clustering | None = field(default=None, metadata=APART)
    spent: Mapping[DeviceId, float] = field(default_factory=dict, metadata=LASTING)
    drift: tuple[str, ...] = ()
    pooling: Pooling = field(default_factory=Pooling)
    moving: Moving = field(default_factory=Moving)
    begun: Mapping[ModelKey, ModelKey] = field(default_factory=dict)
    undescribed: tuple[DeviceId, ...] = ()
    by_updates: bool = False
    basis: Basis | None = None

    def with_model_of(self, earlier: Any, key: ModelKey) -> "State":
        """See `Clustered`. That the earlier model has higher losses says nothing of its devices' data."""
        moving = self.moving
        for device, home in self.assignments.items():
            if home == key:
                moving = moving.without(device)
        return replace(super().with_model_of(earlier, key), moving=moving)

    def again(self, parameters: Parameters) -> "State":
        """See `Clustered`. Devices describe their data again, or give again what they have paid for, and
        are grouped by that: clusters whose data are the same keep their names."""
        if self.clustering is not None:
            parameters = parameters.going_on_from(self.parameters)
        again = super().again(parameters)
        if self.clustering is None:
            again = replace(again, phase="undescribed")
        return replace(
            again,
            clustering=self.clustering and replace(self.clustering, round=0),
            accuracies={},
            spent={},
            drift=(),
            pooling=Pooling(),
            moving=Moving(),
            begun={},
        )

    @property
    def facts(self) -> Mapping[str, Scalar]:
        if self.clustering is None:
            return self.guard.facts
        kept = len(self.clustering.kept)
        found = {"clustering_round": self.clustering.round, "clusters": len(self.clustering.names) - kept}
        drift = {"reclustered": len(self.drift)} if self.parameters.watch else {}
        return {**found, **drift, **({"kept": kept} if kept else {}), **self.guard.facts}

    @property
    def descriptors(self) -> Mapping[DeviceId, Descriptor]:
        """What the devices have released, for the map of the run's history."""
        return self.clustering.described if self.clustering else {}

    @property
    def remarks(self) -> Sequence[str]:
        found = (
            "the groups were found by how the devices' updates differ, which leave without a guarantee, and "
            "not by descriptions"
        )
        by_updates = self.by_updates and len(self.models) > 1  # not where groups were given up since
        said = (
            *((found,) if by_updates and self.parameters.asked_privacy.calibrated else ()),
            *self._undescribed,
            *self._hidden,
            *self._classless,
        )
        return (*said, *self.drift, *super().remarks)

    @property
    def _undescribed(self) -> Sequence[str]:
        if not self.undescribed:
            return ()
        what = too_few(self.undescribed, self.parameters.asked_privacy.epsilon)
        if self.clustering is None and not self.by_updates:
            shown = (
                "their updates show no groups" if self.parameters.groups_by_updates else "all have one model"
            )
            return (
                f"{what}, and {shown}: privacy=off finds some at any size, and a larger "
                "epsilon (privacy=explicit) with fewer samples",
            )
        if self.by_updates:
            return (what,)
        assert self.clustering is not None
        how = (
            "the largest group"
            if self.parameters.losses_stay
            else "the group whose model fits their labels best"
        )
        return (f"{what}, and joined {how}",) if len(self.clustering.names) > 1 else ()

    @property
    def _hidden(self) -> Sequence[str]:
        found = self.clustering
        if found is None or found.noise is None or self.parameters.clusters:
            return ()
        gave_up = self.drift and self.parameters.gives_up_groups
        if len(found.names) > 1 or len(found.described) < 2 or gave_up:
            return ()
        return (
            "all devices are one group, as far as can be seen through the noise of descriptions: smaller "
            "differences show with more samples for each device, or with privacy=off",
        )

    @property
    def _classless(self) -> Sequence[str]:
        count = self.clustering.classless if self.clustering else 0
        if not count or self.by_updates:
            return ()
        return (
            f"{count} devices had too few samples, or too little budget left, to describe "
            "their classes with this privacy: groups of them that differ only by class are not found",
        )
