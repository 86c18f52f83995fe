"""The typed parts of a payload, each with its own message."""

import math
from itertools import pairwise

from shoal.core.errors import BadPayload
from shoal.core.exchange._pb.fed.v1 import parts_pb2 as pb2
from shoal.core.exchange._pb.fed.v1 import privacy_pb2
from shoal.core.exchange.parts import (
    MAX_DIMS,
    MAX_LATENTS,
    MAX_MODELS,
    MAX_ROWS,
    Ballot,
    ClusterAssignment,
    Descriptor,
    Extension,
    LatentBounds,
    Letters,
    MixtureCounts,
    Moments,
    NoisySums,
    PrivacySettings,
    Prototypes,
    Scores,
)
from shoal.core.exchange.privacy_modes import mode_by_number
from shoal.core.exchange.tensors import MAX_NAME
from shoal.core.exchange.wire.checks import (
    for_people,
    integers,
    matrix,
    meaning,
    name,
    names_of,
    present,
    text,
    vector,
)
from shoal.core.exchange.wire.tensors import digest_from_pb
from shoal.core.privacy.cost import rho_of

_PROVENANCES = names_of(pb2.Provenance.DESCRIPTOR)
_OF_GUARANTEE = ("mechanism", "delta", "sensitivity", "noise_scale", "clip_radius", "rho", "group_size")


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


def privacy_to_pb(privacy: PrivacySettings, sums: NoisySums | None = None) -> privacy_pb2.PrivacyParameters:
    pb = privacy_pb2.PrivacyParameters(epsilon=privacy.epsilon)
    pb.mode = privacy.rules.number  # type: ignore[assignment] # the stubs want the generated enum
    if sums is not None:
        pb.mechanism = privacy_pb2.PRIVACY_MECHANISM_DISCRETE_GAUSSIAN
        pb.delta, pb.group_size = privacy.delta, privacy.group_size
        pb.sensitivity, pb.noise_scale, pb.clip_radius = 1.0, sums.sigma, sums.radius
        pb.rho = rho_of(sums.sigma)
    return pb


def privacy_from_pb(pb: privacy_pb2.PrivacyParameters) -> PrivacySettings:
    """Refuse a claim that PrivacySettings cannot hold: no claim may be dropped silently."""
    rules = mode_by_number(pb.mode)
    mode = rules.name
    set_fields = {field.name for field, _ in pb.ListFields()}
    if not rules.calibrated:
        for field in _OF_GUARANTEE:
            if field in set_fields:
                raise BadPayload(f"privacy mode {mode} has no {field}", "update the older of the two sides")
        return PrivacySettings(mode, pb.epsilon)
    for field in _OF_GUARANTEE:
        if field not in set_fields:
            raise BadPayload(f"privacy mode {mode}: {field} is not set")
    if pb.mechanism != privacy_pb2.PRIVACY_MECHANISM_DISCRETE_GAUSSIAN or pb.sensitivity != 1.0:
        raise BadPayload(f"privacy mode {mode} is discrete Gaussian noise on a vector of sensitivity 1")
    return PrivacySettings(mode, pb.epsilon, pb.delta, pb.group_size)


def descriptor_to_pb(descriptor: Descriptor) -> pb2.Descriptor:
    found = descriptor.statistics
    pb = pb2.Descriptor(
        rows=found.rows,
        projector=bytes.fromhex(descriptor.projector),
        privacy=privacy_to_pb(descriptor.privacy, found if isinstance(found, NoisySums) else None),
    )
    if isinstance(found, NoisySums):
        pb.sums.extend(found.values.ravel().tolist())
    else:
        pb.means.extend(found.means.ravel().tolist())
        pb.deviations.extend(found.deviations.ravel().tolist())
        pb.counts.extend(found.counts.tolist())
    return pb


def descriptor_from_pb(pb: pb2.Descriptor) -> Descriptor:
    present(pb, "privacy", "descriptor")
    privacy = privacy_from_pb(pb.privacy)
    projector = digest_from_pb(pb.projector, "descriptor: projector")
    if privacy.calibrated:
        if pb.means or pb.deviations or pb.counts:
            raise BadPayload(f"descriptor: privacy mode {privacy.mode} has sums, and no moments")
        return Descriptor(_sums_from_pb(pb), projector, privacy)
    if pb.sums:
        raise BadPayload(f"descriptor: privacy mode {privacy.mode} has moments, and no sums")
    moments = Moments(
        matrix(pb.means, pb.rows, MAX_ROWS, MAX_ROWS * MAX_DIMS, "descriptor: means"),
        matrix(pb.deviations, pb.rows, MAX_ROWS, MAX_ROWS * MAX_DIMS, "descriptor: deviations"),
        vector(pb.counts, MAX_ROWS, "descriptor: counts"),
    )
    return Descriptor(moments, projector, privacy)


def _sums_from_pb(pb: pb2.Descriptor) -> NoisySums:
    values = integers(pb.sums, pb.rows, MAX_ROWS, MAX_ROWS * (2 * MAX_DIMS + 1), "descriptor: sums")
    sigma = pb.privacy.noise_scale
    sums = NoisySums(values, sigma, pb.privacy.clip_radius)
    if not math.isclose(pb.privacy.rho, rho_of(sigma), rel_tol=1e-9):
        raise BadPayload(f"descriptor: noise of {sigma} costs a rho of {rho_of(sigma)}, not {pb.privacy.rho}")
    return sums


def assignment_to_pb(assignment: ClusterAssignment) -> pb2.ClusterAssignment:
    known = {name: value for name, value in vars(assignment).items() if value == value}  # a NaN stays unset
    return pb2.ClusterAssignment(**known | {"reason": for_people(assignment.reason)})


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


def ballot_to_pb(ballot: Ballot) -> pb2.Ballot:
    return pb2.Ballot(**vars(ballot))


def ballot_from_pb(pb: pb2.Ballot) -> Ballot:
    return Ballot(name(pb.cluster, "a ballot's cluster"), pb.epsilon)


def prototypes_to_pb(prototypes: Prototypes) -> pb2.Prototypes:
    return pb2.Prototypes(
        classes=prototypes.classes.astype(int).tolist(),
        means=prototypes.means.ravel().tolist(),
        counts=prototypes.counts.tolist(),
        encoder=bytes.fromhex(prototypes.encoder),
    )


def prototypes_from_pb(pb: pb2.Prototypes) -> Prototypes:
    classes = vector(pb.classes, MAX_ROWS, "prototypes: classes")
    return Prototypes(
        classes,
        matrix(pb.means, len(classes), MAX_ROWS, MAX_ROWS * MAX_DIMS, "prototypes: means"),
        vector(pb.counts, MAX_ROWS, "prototypes: counts"),
        digest_from_pb(pb.encoder, "prototypes: encoder") if pb.encoder else "",
    )


def mixture_to_pb(mixture: MixtureCounts) -> pb2.MixtureCounts:
    return pb2.MixtureCounts(counts=mixture.counts.ravel().tolist(), rows=len(mixture.counts))


def mixture_from_pb(pb: pb2.MixtureCounts) -> MixtureCounts:
    return MixtureCounts(matrix(pb.counts, pb.rows, MAX_MODELS, MAX_MODELS * MAX_ROWS, "mixture counts"))


def letters_to_pb(letters: Letters) -> pb2.Letters:
    return pb2.Letters(
        letters=[pb2.Letter(device=device, data=data) for device, data in letters.by_device.items()]
    )


def letters_from_pb(pb: pb2.Letters) -> Letters:
    names = [letter.device for letter in pb.letters]
    if any(one >= other for one, other in pairwise(names)):
        raise BadPayload("letters: devices are not in ascending order, each once")
    return Letters({letter.device: letter.data for letter in pb.letters})


def extension_to_pb(extension: Extension) -> pb2.Extension:
    return pb2.Extension(type=name(extension.type, "extension: type"), data=extension.data)


def extension_from_pb(pb: pb2.Extension) -> Extension:
    return Extension(name(pb.type, "extension: type"), pb.data)
