"""Payloads: one message of an algorithm, part by part."""

from typing import assert_never

from shoal.core.errors import BadPayload
from shoal.core.exchange._pb.fed.v1 import payload_pb2 as pb2
from shoal.core.exchange.parts import (
    MAX_LATENTS,
    MAX_MODELS,
    Ballot,
    ClusterAssignment,
    Descriptor,
    Extension,
    LatentBounds,
    MixtureCounts,
    Prototypes,
    Scores,
)
from shoal.core.exchange.payload import Part, Payload, Settings, Weights
from shoal.core.exchange.wire import parts, tensors
from shoal.core.exchange.wire.checks import MAX_ENTRIES, limited, name, refuse_unknown


def payload_to_pb(payload: Payload) -> pb2.Payload:
    """Raises BadPayload for what a peer would refuse: too many parts, a name that is too long."""
    limited(len(payload.parts), MAX_ENTRIES, "a payload's parts")
    return pb2.Payload(
        kind=name(payload.kind, "a payload's kind"),
        parts={name(key, "a part's name"): _part_to_pb(part) for key, part in payload.parts.items()},
    )


def payload_from_pb(pb: pb2.Payload) -> Payload:
    kind = name(pb.kind, "a payload's kind")
    limited(len(pb.parts), MAX_ENTRIES, "a payload's parts")
    refuse_unknown(pb, f"message {kind!r}")
    found: dict[str, Part] = {}
    for key, part in pb.parts.items():
        name(key, f"message {kind!r}, a field's name")
        try:
            found[key] = _part_from_pb(part)
        except BadPayload as fault:
            raise BadPayload(f"message {kind!r}, field {key!r}: {fault.message}", fault.hint) from None
    return Payload(kind, found)


def _part_to_pb(part: Part) -> pb2.Part:
    match part:
        case bool() | int() | float() | str():
            return pb2.Part(scalar=tensors.scalar_to_pb(part))
        case Weights():
            return pb2.Part(weights=tensors.weights_to_pb(part))
        case tuple():
            return _tuple_to_pb(part)
        case Settings():
            values = tensors.scalars_to_pb(part.values, "settings")
            return pb2.Part(settings=pb2.Settings(values=values))
        case LatentBounds():
            return pb2.Part(latent_bounds=parts.bounds_to_pb(part))
        case Descriptor():
            return pb2.Part(descriptor=parts.descriptor_to_pb(part))
        case ClusterAssignment():
            return pb2.Part(cluster_assignment=parts.assignment_to_pb(part))
        case Scores():
            return pb2.Part(scores=parts.scores_to_pb(part))
        case Prototypes():
            return pb2.Part(prototypes=parts.prototypes_to_pb(part))
        case MixtureCounts():
            return pb2.Part(mixture_counts=parts.mixture_to_pb(part))
        case Ballot():
            return pb2.Part(ballot=parts.ballot_to_pb(part))
        case Extension():
            return pb2.Part(extension=parts.extension_to_pb(part))
        case _:
            assert_never(part)


def _tuple_to_pb(items: tuple[Weights, ...] | tuple[float, ...]) -> pb2.Part:
    """Tensor sets or numbers; () goes as no numbers, and is taken for no tensor sets as well."""
    sets = [tensors.weights_to_pb(item) for item in items if isinstance(item, Weights)]
    if sets:
        return pb2.Part(weights_list=pb2.WeightsList(weights=sets))
    numbers = [item for item in items if not isinstance(item, Weights)]
    return pb2.Part(numbers=pb2.Numbers(numbers=numbers))


def _part_from_pb(pb: pb2.Part) -> Part:
    match pb.WhichOneof("part"):
        case "scalar":
            return tensors.scalar_from_pb(pb.scalar)
        case "weights":
            return tensors.weights_from_pb(pb.weights)
        case "weights_list":
            limited(len(pb.weights_list.weights), MAX_MODELS, "tensor sets")
            return tuple(tensors.weights_from_pb(item) for item in pb.weights_list.weights)
        case "numbers":
            limited(len(pb.numbers.numbers), MAX_LATENTS, "numbers")
            return tuple(pb.numbers.numbers)
        case "settings":
            return Settings(tensors.scalars_from_pb(pb.settings.values, "settings"))
        case "latent_bounds":
            return parts.bounds_from_pb(pb.latent_bounds)
        case "descriptor":
            return parts.descriptor_from_pb(pb.descriptor)
        case "cluster_assignment":
            return parts.assignment_from_pb(pb.cluster_assignment)
        case "scores":
            return parts.scores_from_pb(pb.scores)
        case "prototypes":
            return parts.prototypes_from_pb(pb.prototypes)
        case "mixture_counts":
            return parts.mixture_from_pb(pb.mixture_counts)
        case "ballot":
            return parts.ballot_from_pb(pb.ballot)
        case "extension":
            return parts.extension_from_pb(pb.extension)
        case None:
            raise BadPayload("part is not set")
