"""Placing a device: finding the model for its data, without labels if possible.

    place(wish) --> "choose one of these models" --> fetch them --> choose --> <state>/model/

Nothing about the data is sent: the training process tries the models, and the choice stays here. Where
the run decides itself, because it is set so or cannot give its models away, there is one more call:

    place(wish) --> question, such as "describe your data" --> fetch encoder and projector --> describe
    place(evidence) --> placement --> fetch the model --> <state>/model/

Only the evidence that the server asked for is sent, as the algorithm's device half makes it: a descriptor,
or, in runs that cannot place without labels, the losses of models or mean embeddings.

A device that trains in the run has a cluster. It gets that one's model, and makes it its own:

    place(wish) --> "fine-tune this model" --> fetch it --> train on the device's data --> <state>/model/
"""

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from fedclient.faults import TaskFailed
from fedclient.placing.asking import MAX_MODELS, Asks, wanted
from fedclient.store.blobs import BlobStore
from fedclient.store.privacy_report import line
from fedclient.store.state import GRAPH, MODEL, OTHER, PLACEMENT
from fedclient.work.executor import Executor, performed
from shoal.core.errors import BadPayload
from shoal.core.exchange.choosing import HINT, NO_CLASSIFIER, Chosen, Counted, Wish
from shoal.core.exchange.choosing.compact import ChooseCompact
from shoal.core.exchange.choosing.tuning import MAX_LOSS_LEFT, Tune, Tuned
from shoal.core.exchange.choosing.watching import Moved
from shoal.core.exchange.link import Failure, Placement, Question, Task, Trial
from shoal.core.exchange.parts import ClusterAssignment, Evidence
from shoal.core.exchange.payload import BlobRef, Payload, Weights, decode
from shoal.core.exchange.seal import Seal, Signed
from shoal.core.exchange.wire import payload_to_bytes
from shoal.core.inference.graph.model import reference_of
from shoal.core.inference.newcomer import members
from shoal.core.types import RunId, Tensors
from shoal.shell.disk import make_folder, move, write
from shoal.shell.weights import write as write_weights

MEMBER = "this device trains in the run, and this is its own cluster"
NOT_WORTH_IT = (
    f"fine-tuning did not lower the held-out loss by {1.0 - MAX_LOSS_LEFT:.0%} and by more than chance "
    "explains"
)


@dataclass(frozen=True)
class Tried:
    """What this device found of one model, by its own samples: see `shoal.core.exchange.choosing.Chosen`."""

    model: str
    information: float
    error: float
    probability: float
    agreement: float
    likelihood: float | None = None


@dataclass(frozen=True)
class Member:
    """A model that predicts together with others, and its share in the probabilities."""

    cluster: str
    share: float
    model: Weights


@dataclass(frozen=True)
class FineTuning:
    """What came of fine-tuning a cluster's model.

    kept: whether the fine-tuned model is used. before, after: the held-out losses that decided; None where
    fine-tuning failed. reason: why the cluster's model is used instead; "" where it is not.
    """

    kept: bool
    before: float | None = None
    after: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class PlacementResult:
    """Where these data belong.

    model: None if the server abstained. mixture: the models that predict together, if there are several; the
    shares sum to 1. tried: the models that this device chose among, if it did. seconds: from the first call
    to the last byte. received, sent: bytes of models and of evidence, without the few hundred bytes of the
    calls around them. graph: of the run, if this device has no learner. privacy: what this device has
    released so far, from `fedclient.store.privacy_report`. tuning: of a device that trains. release: whose
    models these are; "" for those that the run had then. trial: another release to try beside. of_cluster:
    the model of the cluster before fine-tuning; None if the server abstained. seal: what the server has
    signed of the release, checked; None where it signs none.
    """

    run: RunId
    assignment: ClusterAssignment
    model: Weights | None
    seconds: float = 0.0
    received: int = 0
    sent: int = 0
    tried: tuple[Tried, ...] = ()
    graph: BlobRef | None = None
    privacy: Mapping[str, Any] = field(default_factory=dict)
    mixture: tuple[Member, ...] = ()
    tuning: FineTuning | None = None
    of_cluster: Weights | None = None
    release: str = ""
    trial: Trial | None = None
    seal: Signed | None = None

    @property
    def models(self) -> list[Weights]:
        """The model, and those of the mixture besides."""
        found = [self.model, *(each.model for each in self.mixture)]
        return list(dict.fromkeys(each for each in found if each is not None))

    def facts(self) -> dict[str, Any]:
        """For programs. A missing distance is None, since JSON has no NaN."""
        found = asdict(self.assignment)
        for name, value in found.items():
            if isinstance(value, float) and math.isnan(value):
                found[name] = None
        blob = self.model.blob.sha256 if self.model else None
        seconds = round(self.seconds, 3)
        traffic = {"seconds": seconds, "received": self.received, "sent": self.sent}
        tried = [asdict(each) for each in self.tried]
        graph = {"graph": self.graph.sha256} if self.graph else {}
        mixture = [
            {"cluster": each.cluster, "share": each.share, "model": each.model.blob.sha256}
            for each in self.mixture
        ]
        models = {"model": blob, "mixture": mixture, **graph, "tried": tried}
        tuning = {"fine_tuning": asdict(self.tuning)} if self.tuning else {}
        named = {"run": self.run, "release": self.release or None}
        return {**named, **found, **models, **tuning, **traffic, "privacy": self.privacy}


class Placer:
    """Places this device once. asks: reaches the server, and fetches what its answers name.

    light: the device has no learner, and uses the graph of the run instead. note_failure: writes into the
    ledger that no evidence could be shown, and why; the server learns that much, since none comes. own: has
    the data on which the device trains, with their labels; None where the placement is about other data.
    tune: fine-tune its cluster's model there; without it, that model is used as it is. moved: what the device
    says of its data with its wish.
    """

    def __init__(
        self,
        asks: Asks,
        executor: Executor,
        doing: Callable[[str], None],
        light: bool = False,
        note_failure: Callable[[RunId, str], None] = lambda run, code: None,
        own: Executor | None = None,
        tune: bool = True,
        moved: Moved | None = None,
    ) -> None:
        self._note_failure, self._own, self._tune = note_failure, own, tune
        self._asks, self._executor, self._doing, self._light = asks, executor, doing, light
        self._graph: BlobRef | None = None
        self._trial: Trial | None = None
        self._sent, self._moved = 0, moved

    async def place(
        self,
        run: RunId = "",
        accept_nearest: bool = False,
        counted: Counted | None = None,
    ) -> PlacementResult:
        """Find the model and fetch it; if the server abstained, only with `accept_nearest`.

        The learner and the data are loaded before a server is asked, even if the answer will not depend on
        them, so that their faults show first. counted: what a device that follows a channel has counted in a
        rollout; None if it takes part in none.

        Raises Refused if the run cannot place, DataFault, LearnerFault, or Unavailable.
        """
        self._doing("loading the learner and the data")
        await self._executor.start()
        began = time.monotonic()
        found = await self._found(run, accept_nearest, counted)
        return replace(
            found,
            of_cluster=found.of_cluster or found.model,
            seconds=time.monotonic() - began,
            received=self._asks.received,
            sent=self._sent,
            graph=self._graph,
            trial=self._trial,
            seal=self._asks.seal,
        )

    async def _found(self, run: RunId, accept_nearest: bool, counted: Counted | None) -> PlacementResult:
        """The placement and the models to use, without what they cost."""
        self._doing("asking the server for the models to choose among")
        light, own = self._light, self._own is not None
        wish = Wish(MAX_MODELS, light, own=own, counted=counted, moved=self._moved)
        answer = await self._ask(run, wish, accept_nearest)
        self._trial = answer.trial
        if isinstance(answer, Question) and answer.payload.kind == Tune.kind:
            if self._own is None:
                raise BadPayload("the server asks to fine-tune a model on other data than this device's own")
            return await self._tuned(answer, self._own)
        if isinstance(answer, Question) and answer.payload.kind == ChooseCompact.kind:
            try:
                return await self._chosen(answer)
            except TaskFailed as failed:
                if failed.code != NO_CLASSIFIER:
                    raise
                self._doing(f"asking the run to decide, since this network cannot: {failed.message}")
                answer = await self._ask(answer.release or answer.run, None, accept_nearest)
        if isinstance(answer, Question):
            evidence = await self._evidence(answer)
            self._doing("asking the server which model fits these data")
            answer = await self._ask(answer.release or answer.run, evidence, accept_nearest)
        if not isinstance(answer, Placement):
            raise BadPayload("the server asked the same question again", "update the server or this device")
        model = wanted(answer, accept_nearest)
        return PlacementResult(answer.run, answer.assignment, model, release=answer.release)

    async def _ask(
        self, run: RunId, evidence: Evidence | Wish | None, accept_nearest: bool
    ) -> Question | Placement:
        """The server's answer. On return, its blobs are here, and its graph was checked and is in use."""
        answer = await self._asks.ask(run, evidence, accept_nearest)
        if self._light:
            await self._open(answer)
        return answer

    async def _open(self, answer: Question | Placement) -> None:
        """Let the process that has the data check the run's graph, and use it from now on.

        For each question again: the process may be another one than before.
        """
        graph = answer.graph
        if graph is None and self._graph is None:
            raise BadPayload("the server gives no graph to use instead of a learner", "set `learner`")
        if graph is None or (graph == self._graph and isinstance(answer, Placement)):
            return
        weights = reference_of(graph.sha256, graph.size)
        await performed(self._executor, Task("local", 1, 0, 0, "open", Payload("open", {"graph": weights})))
        self._graph = graph

    async def _chosen(self, question: Question) -> PlacementResult:
        """The placement that this device finds for itself among the models, which are here."""
        self._doing("trying the models on the data")
        result = await performed(self._executor, Task(question.run, 1, 0, 0, "choose", question.payload))
        found = decode(result, {Chosen.kind: Chosen}, lambda weights: {})
        assert isinstance(found, Chosen)
        keys = str(question.payload.parts["names"]).split(" ")
        # The common model has no density.
        near = (*(found.likelihood or (None,) * (len(keys) - 1)), None)
        figures = zip(keys, found.information, found.errors, found.odds, found.agreement, near, strict=True)
        chosen, parts = keys.index(found.assignment.cluster), members(found)
        model, others = result.parts.get("model"), result.parts.get("others") or ()
        assert isinstance(model, Weights)
        assert isinstance(others, tuple)
        rest = [number for number in parts if number != chosen]
        given = {chosen: model, **dict(zip(rest, cast(tuple[Weights, ...], others), strict=True))}
        shares = found.mixture or ()
        return PlacementResult(
            question.run,
            found.assignment,
            given[chosen],
            mixture=tuple(Member(keys[number], shares[number], given[number]) for number in parts),
            tried=tuple(Tried(*each) for each in figures),
            release=question.release,
        )

    async def _tuned(self, question: Question, own: Executor) -> PlacementResult:
        """The model of the device's own cluster, fine-tuned if that pays."""
        parts = question.payload.parts
        given, cluster = parts.get("model"), parts.get("cluster")
        if not isinstance(given, Weights) or not isinstance(cluster, str):
            raise BadPayload("the server asks to fine-tune, and names no model or no cluster", HINT)
        where = ClusterAssignment(cluster, reason=MEMBER)
        found = PlacementResult(question.run, where, given, release=question.release, of_cluster=given)
        if not self._tune:
            return found
        await self._executor.stop()  # it is not needed any more, and two that have PyTorch take much memory
        self._doing("fine-tuning the cluster's model on this device's data")
        result = await own.perform(Task(question.run, 1, 0, 0, "tune", question.payload))
        if isinstance(result, Failure):  # which is no error here: the cluster's model is at hand
            return replace(found, tuning=FineTuning(False, reason=f"fine-tuning failed: {result.message}"))
        tuned, model = decode(result, {Tuned.kind: Tuned}, lambda weights: {}), result.parts.get("model")
        assert isinstance(tuned, Tuned)
        kept = isinstance(model, Weights)
        tuning = FineTuning(kept, tuned.before, tuned.after, "" if kept else NOT_WORTH_IT)
        return replace(found, model=model if isinstance(model, Weights) else given, tuning=tuning)

    async def _evidence(self, question: Question) -> Evidence:
        self._doing("describing the data")
        try:
            task = Task(question.run, 1, 0, 0, "describe", question.payload, question.terms)
            result = await performed(self._executor, task)
        except TaskFailed as failed:
            self._note_failure(question.run, failed.code)
            raise
        shown = {name: part for name, part in result.parts.items() if isinstance(part, Evidence)}
        if len(shown) != 1:
            raise BadPayload(
                f"the server asks for {question.payload.kind!r}, which this device cannot answer",
                "update this device",
            )
        self._sent += len(payload_to_bytes(Payload("evidence", shown)))
        return next(iter(shown.values()))


def save(result: PlacementResult, store: BlobStore, folder: Path) -> Path:
    """Write the model where `fedclient predict` looks for it, and return its path. Raises StorageFault, and
    NotGenuine before anything is written if the models are not those of their release.

    Others of a mixture come first, under names that their content gives, and those of an earlier one are
    removed last: so the model's file always names files that are there. The graph comes first, too, and takes
    the place of the earlier one last.
    """
    from fedclient.work.genuine import FINE_TUNING, SEAL, SIGNATURE
    from fedclient.work.predictions import GRAPH_DIGEST, MIXTURE, NEXT_GRAPH

    assert result.model is not None
    if result.seal is not None:
        _check(result, Seal.read(result.seal.statement), store)
    path = folder / MODEL
    make_folder(folder)
    if result.graph is not None:
        write(folder / NEXT_GRAPH, b"".join(store.chunks(result.graph, 0)))
    facts = {"run": result.run, "cluster": result.assignment.cluster}
    if result.graph is not None:
        facts[GRAPH_DIGEST] = result.graph.sha256
    if result.seal is not None:
        facts |= {SEAL: result.seal.statement.decode(), SIGNATURE: result.seal.signature.hex()}
    if result.tuning and result.tuning.kept:
        facts[FINE_TUNING] = "on the data of the device that fetched it"
    if result.privacy:
        facts["privacy"] = f"of the device that fetched it: {line(result.privacy)}"
    clusters = {each.model: each.cluster for each in result.mixture}
    files = {each.model: OTHER.format(each.model.blob.sha256[:16]) for each in result.mixture}
    files.pop(result.model, None)
    for weights, name in files.items():
        _write(folder / name, store.load(weights), {"cluster": clusters[weights]})
    if result.mixture:
        shares = {files.get(each.model, MODEL): each.share for each in result.mixture}
        facts |= {"model": result.model.blob.sha256, MIXTURE: json.dumps(shares)}
    _write(path, store.load(result.model), facts)
    if result.graph is not None:
        move(folder / NEXT_GRAPH, folder / GRAPH)
    write(folder / PLACEMENT, json.dumps(result.facts()).encode())
    for old in folder.glob(OTHER.format("*")):
        if old.name not in files.values():
            old.unlink(missing_ok=True)
    return path


def _check(result: PlacementResult, seal: Seal, store: BlobStore) -> None:
    """What was made of a model here, by fine-tuning, is this device's own."""
    given = {each.model: each.cluster for each in result.mixture}
    if result.of_cluster is not None:
        given[result.of_cluster] = result.assignment.cluster
    for weights, cluster in given.items():
        seal.check(result.release, cluster, store.load(weights))


def _write(path: Path, tensors: Tensors, facts: dict[str, str]) -> None:
    from fedclient.work.predictions import sealed

    write_weights(path, tensors, sealed(tensors, facts))
