"""The typed parts of a payload, each with its own message."""

import math
from collections.abc import Mapping

from fedcore._pb.fed.v1 import payload_pb2 as pb2
from fedcore._pb.fed.v1 import privacy_pb2
from fedcore.errors import BadPayload
from fedcore.parts import (
    MAX_DIMS,
    MAX_LATENTS,
    MAX_MODELS,
    MAX_ROWS,
    ClusterAssignment,
    Descriptor,
    Extension,
    LatentBounds,
    MixtureCounts,
    PrivacySettings,
    Prototypes,
    Scores,
)
from fedcore.tensors import MAX_NAME
from fedcore.wire.checks import for_people, matrix, meaning, name, present, text, vector
from fedcore.wire.tensors import digest_from_pb, digest_to_pb

_PROVENANCES: Mapping[int, str] = {
    pb2.PROVENANCE_RAW: "raw",
    pb2.PROVENANCE_PUBLIC: "public",
    pb2.PROVENANCE_PRIVATE: "private",
}
_MODES: Mapping[int, str] = {privacy_pb2.PRIVACY_MODE_OFF: "off", privacy_pb2.PRIVACY_MODE_PAPER: "paper"}
_CALIBRATED = ("mechanism", "delta", "sensitivity", "noise_scale", "clip_radius", "rho", "group_size")


def bounds_to_pb(bounds: LatentBounds) -> pb2.LatentBounds:
    return pb2.LatentBounds(
        low=bounds.low.tolist(),
        high=bounds.high.tolist(),
        provenance=pb2.Provenance.Value(f"PROVENANCE_{bounds.provenance.upper()}"),
        epoch=bounds.epoch,
    )


def bounds_from_pb(pb: pb2.LatentBounds) -> LatentBounds:
    return LatentBounds(
        vector(pb.low, MAX_LATENTS, "latent bounds"),
        vector(pb.high, MAX_LATENTS, "latent bounds"),
        meaning(_PROVENANCES, pb.provenance, "latent bounds: provenance"),
        pb.epoch,
    )


def privacy_to_pb(privacy: PrivacySettings) -> privacy_pb2.PrivacyParameters:
    mode = privacy_pb2.PrivacyMode.Value(f"PRIVACY_MODE_{privacy.mode.upper()}")
    return privacy_pb2.PrivacyParameters(mode=mode, epsilon=privacy.epsilon)


def privacy_from_pb(pb: privacy_pb2.PrivacyParameters) -> PrivacySettings:
    """Refuses a claim that PrivacySettings cannot hold: none may be dropped without a word."""
    mode = meaning(_MODES, pb.mode, "privacy mode")
    set_fields = {field.name for field, _ in pb.ListFields()}
    for field in _CALIBRATED:
        if field in set_fields:
            raise BadPayload(f"privacy mode {mode} has no {field}", "update the older of the two sides")
    return PrivacySettings(mode, pb.epsilon)


def descriptor_to_pb(descriptor: Descriptor) -> pb2.Descriptor:
    return pb2.Descriptor(
        means=descriptor.means.ravel().tolist(),
        deviations=descriptor.deviations.ravel().tolist(),
        counts=descriptor.counts.tolist(),
        rows=len(descriptor.means),
        projector=digest_to_pb(descriptor.projector, "descriptor: projector"),
        privacy=privacy_to_pb(descriptor.privacy),
    )


def descriptor_from_pb(pb: pb2.Descriptor) -> Descriptor:
    present(pb, "privacy", "descriptor")
    return Descriptor(
        matrix(pb.means, pb.rows, MAX_ROWS, MAX_ROWS * MAX_DIMS, "descriptor: means"),
        matrix(pb.deviations, pb.rows, MAX_ROWS, MAX_ROWS * MAX_DIMS, "descriptor: deviations"),
        vector(pb.counts, MAX_ROWS, "descriptor: counts"),
        digest_from_pb(pb.projector, "descriptor: projector"),
        privacy_from_pb(pb.privacy),
    )


def assignment_to_pb(assignment: ClusterAssignment) -> pb2.ClusterAssignment:
    return pb2.ClusterAssignment(
        cluster=assignment.cluster,
        distance=None if math.isnan(assignment.distance) else assignment.distance,
        runner_up=assignment.runner_up,
        runner_up_distance=None
        if math.isnan(assignment.runner_up_distance)
        else assignment.runner_up_distance,
        confidence=assignment.confidence,
        abstained=assignment.abstained,
        reason=for_people(assignment.reason),
    )


def assignment_from_pb(pb: pb2.ClusterAssignment) -> ClusterAssignment:
    return ClusterAssignment(
        text(pb.cluster, "a cluster's name", MAX_NAME),
        _distance(pb.distance) if pb.HasField("distance") else math.nan,
        text(pb.runner_up, "a cluster's name", MAX_NAME),
        _distance(pb.runner_up_distance) if pb.HasField("runner_up_distance") else math.nan,
        pb.confidence,
        pb.abstained,
        text(pb.reason, "cluster assignment: reason"),
    )


def _distance(value: float) -> float:
    if math.isnan(value):
        raise BadPayload("cluster assignment: a distance is NaN", "leave it unset where there is none")
    return value


def scores_to_pb(scores: Scores) -> pb2.Scores:
    return pb2.Scores(losses=scores.losses.tolist(), examples=scores.examples)


def scores_from_pb(pb: pb2.Scores) -> Scores:
    return Scores(vector(pb.losses, MAX_MODELS, "scores"), pb.examples)


def prototypes_to_pb(prototypes: Prototypes) -> pb2.Prototypes:
    return pb2.Prototypes(
        classes=prototypes.classes.astype(int).tolist(),
        means=prototypes.means.ravel().tolist(),
        counts=prototypes.counts.tolist(),
    )


def prototypes_from_pb(pb: pb2.Prototypes) -> Prototypes:
    classes = vector(pb.classes, MAX_ROWS, "prototypes: classes")
    return Prototypes(
        classes,
        matrix(pb.means, len(classes), MAX_ROWS, MAX_ROWS * MAX_DIMS, "prototypes: means"),
        vector(pb.counts, MAX_ROWS, "prototypes: counts"),
    )


def mixture_to_pb(mixture: MixtureCounts) -> pb2.MixtureCounts:
    return pb2.MixtureCounts(counts=mixture.counts.ravel().tolist(), rows=len(mixture.counts))


def mixture_from_pb(pb: pb2.MixtureCounts) -> MixtureCounts:
    return MixtureCounts(matrix(pb.counts, pb.rows, MAX_MODELS, MAX_MODELS * MAX_ROWS, "mixture counts"))


def extension_to_pb(extension: Extension) -> pb2.Extension:
    return pb2.Extension(type=name(extension.type, "extension: type"), data=extension.data)


def extension_from_pb(pb: pb2.Extension) -> Extension:
    return Extension(name(pb.type, "extension: type"), pb.data)
