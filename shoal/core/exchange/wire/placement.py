"""Placement: what a newcomer reports about itself, and the model or question that it gets."""

from dataclasses import asdict, fields, replace

from shoal.core.errors import BadPayload
from shoal.core.exchange._pb.fed.v1 import placement_service_pb2 as pb2
from shoal.core.exchange._pb.fed.v1 import tensor_pb2
from shoal.core.exchange.choosing import Counted, Wish
from shoal.core.exchange.choosing.watching import Moved
from shoal.core.exchange.link import Placement, Question, Trial
from shoal.core.exchange.parts import MAX_MODELS, Evidence
from shoal.core.exchange.payload import BlobRef
from shoal.core.exchange.seal import Signed
from shoal.core.exchange.tensors import MAX_NAME
from shoal.core.exchange.wire.checks import limited, name, present, refuse_unknown, text
from shoal.core.exchange.wire.fields import PARTS
from shoal.core.exchange.wire.parts import assignment_from_pb, assignment_to_pb
from shoal.core.exchange.wire.payload import payload_from_pb, payload_to_pb
from shoal.core.exchange.wire.tensors import blob_from_pb, blob_to_pb, weights_from_pb, weights_to_pb
from shoal.core.rollout import Counts
from shoal.core.types import RunId

_EVIDENCE = {name.lower(): PARTS[name] for name in ("Descriptor", "Scores", "Prototypes", "Ballot")}
"""How each kind of evidence is converted, by its field in the request."""
_FIELDS = {kind: field for field, converter in _EVIDENCE.items() for kind in converter.types}


def place_to_pb(run: RunId, evidence: Evidence | Wish | None) -> pb2.PlaceRequest:
    if isinstance(evidence, Wish):
        return pb2.PlaceRequest(run=run, wish=_wish_to_pb(evidence))
    if evidence is None:
        return pb2.PlaceRequest(run=run)
    field = _FIELDS[type(evidence)]
    return pb2.PlaceRequest(run=run, **{field: _EVIDENCE[field].to_pb(evidence)})


def _wish_to_pb(wish: Wish) -> pb2.Wish:
    moved = None if wish.moved is None else pb2.Moved(**vars(wish.moved))
    found = pb2.Wish(models=wish.models, graph=wish.graph, own=wish.own, moved=moved)
    if (counted := wish.counted) is not None:
        found.counted.CopyFrom(
            pb2.ShadowCounts(rollout=counted.rollout, cluster=counted.cluster, **asdict(counted.counts))
        )
    return found


def _wish_from_pb(pb: pb2.Wish) -> Wish:
    counted = None
    if pb.HasField("counted"):
        counts = Counts(*(getattr(pb.counted, each.name) for each in fields(Counts)))
        rollout = text(pb.counted.rollout, "a rollout's name", MAX_NAME)
        counted = Counted(rollout, text(pb.counted.cluster, "a cluster's name", MAX_NAME), counts)
    said = pb.moved if pb.HasField("moved") else None
    moved = None if said is None else Moved(said.subject, said.cluster, said.moved)
    return Wish(pb.models, pb.graph, pb.own, counted, moved)


def place_from_pb(pb: pb2.PlaceRequest) -> tuple[RunId, Evidence | Wish | None]:
    """Refuse an unknown kind of evidence: read as none, it would be requested again and again."""
    refuse_unknown(pb, "the request for a placement")
    run = text(pb.run, "a run's name", MAX_NAME)
    field = pb.WhichOneof("evidence")
    if field is None:
        return run, None
    if field == "wish":
        return run, _wish_from_pb(pb.wish)
    return run, _EVIDENCE[field].from_pb(getattr(pb, field))


def answer_to_pb(answer: Question | Placement) -> pb2.PlaceResponse:
    if isinstance(answer, Question):
        question = pb2.Question(
            run=answer.run,
            payload=payload_to_pb(answer.payload),
            graph=_graph_to_pb(answer.graph),
            terms=answer.terms,
            release=answer.release,
        )
        return pb2.PlaceResponse(question=question, trial=_trial_to_pb(answer.trial))
    placement = pb2.Placement(
        run=answer.run,
        assignment=assignment_to_pb(answer.assignment),
        model=None if answer.model is None else weights_to_pb(answer.model),
        graph=_graph_to_pb(answer.graph),
        release=answer.release,
    )
    return pb2.PlaceResponse(placement=placement, trial=_trial_to_pb(answer.trial))


def answer_from_pb(pb: pb2.PlaceResponse) -> Question | Placement:
    """Raises BadPayload also for a placement that has no model and does not abstain."""
    refuse_unknown(pb, "the answer to a placement")
    match pb.WhichOneof("answer"):
        case "question":
            return replace(_question_from_pb(pb.question), trial=_trial_from_pb(pb))
        case "placement":
            return replace(_placement_from_pb(pb.placement), trial=_trial_from_pb(pb))
        case None:
            raise BadPayload("the answer to a placement: answer is not set")


def _question_from_pb(pb: pb2.Question) -> Question:
    present(pb, "payload", "a question")
    run, terms = name(pb.run, "a question's run"), text(pb.terms, "the terms of a run")
    release = text(pb.release, "a question's release", MAX_NAME)
    return Question(run, payload_from_pb(pb.payload), _graph_from_pb(pb), terms, release)


def _placement_from_pb(pb: pb2.Placement) -> Placement:
    present(pb, "assignment", "a placement")
    assignment = assignment_from_pb(pb.assignment)
    if not pb.HasField("model") and not assignment.abstained:
        raise BadPayload("a placement: model is not set, and the server did not abstain")
    model = weights_from_pb(pb.model) if pb.HasField("model") else None
    release = text(pb.release, "a placement's release", MAX_NAME)
    return Placement(name(pb.run, "a placement's run"), assignment, model, _graph_from_pb(pb), release)


def seal_to_pb(seal: Signed | None) -> pb2.GetSealResponse:
    return pb2.GetSealResponse() if seal is None else pb2.GetSealResponse(**vars(seal))


def seal_from_pb(pb: pb2.GetSealResponse) -> Signed | None:
    return Signed(pb.statement, pb.signature) if pb.statement else None


def _trial_to_pb(trial: Trial | None) -> pb2.Trial | None:
    return None if trial is None else pb2.Trial(**asdict(trial))


def _trial_from_pb(pb: pb2.PlaceResponse) -> Trial | None:
    if not pb.HasField("trial"):
        return None
    limited(len(pb.trial.clusters), MAX_MODELS, "the clusters of a trial")
    clusters = tuple(name(each, "a cluster of a trial") for each in pb.trial.clusters)
    return Trial(name(pb.trial.rollout, "a rollout"), name(pb.trial.release, "a trial's release"), clusters)


def _graph_to_pb(graph: BlobRef | None) -> tensor_pb2.BlobRef | None:
    return None if graph is None else blob_to_pb(graph)


def _graph_from_pb(pb: pb2.Question | pb2.Placement) -> BlobRef | None:
    return blob_from_pb(pb.graph) if pb.HasField("graph") else None
