"""Placing a device: finding the model for its data, without labels if possible.

    place(wish) --> "choose one of these models" --> fetch them --> choose --> <state>/model/

Nothing about the data is sent: the training process tries the models, and the choice stays here. Where
the run decides itself, because it is set so or cannot give its models away, there is one more call:

    place(wish) --> question, such as "describe your data" --> fetch encoder and projector --> describe
    place(evidence) --> placement --> fetch the model --> <state>/model/

Only the evidence that the server asked for is sent, as the algorithm's device half makes it: a descriptor,
or, in runs that cannot place without labels, the losses of models or mean embeddings.
"""

import json
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from fedclient.faults import TaskFailed
from fedclient.net.backoff import Backoff, patiently
from fedclient.store.blobs import BlobStore
from fedclient.store.privacy_report import line
from fedclient.store.state import GRAPH, MODEL, PLACEMENT
from fedclient.work.executor import Executor
from shoal.core.errors import BadPayload, NotFound, Refused
from shoal.core.exchange.choosing import NO_CLASSIFIER, Choose, Chosen, Wish
from shoal.core.exchange.choosing.compact import ChooseCompact
from shoal.core.exchange.link import Failure, Link, Placement, Question, Task
from shoal.core.exchange.parts import ClusterAssignment, Evidence
from shoal.core.exchange.payload import BlobRef, Payload, Weights, decode
from shoal.core.exchange.tensors import check_manifest
from shoal.core.exchange.wire import payload_to_bytes
from shoal.core.inference.graph.model import reference_of
from shoal.core.types import RunId
from shoal.shell.disk import make_folder, settle, storing, temporary, write

T = TypeVar("T")

MOST_MODELS = 64
"""The models of how many clusters this device takes at once, to choose among them."""
CHOICES = (Choose.kind, ChooseCompact.kind)


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
class PlacementResult:
    """Where these data belong.

    model: None if the server abstained. tried: the models that this device chose among, if it did. seconds:
    from the first call to the last byte. received, sent: bytes of models and of evidence, without the few
    hundred bytes of the calls around them. graph: of the run, if this device has no learner. privacy: what
    this device has released so far, from `fedclient.store.privacy_report`.
    """

    run: RunId
    assignment: ClusterAssignment
    model: Weights | None
    seconds: float
    received: int
    sent: int
    tried: tuple[Tried, ...] = ()
    graph: BlobRef | None = None
    privacy: Mapping[str, Any] = field(default_factory=dict)

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
        models = {"model": blob, **graph, "tried": tried}
        return {"run": self.run, **found, **models, **traffic, "privacy": self.privacy}


class Placer:
    """Asks one server. download_bytes: the size limit of one model. give_up_after: seconds without a
    server.
    """

    def __init__(
        self,
        link: Link,
        executor: Executor,
        store: BlobStore,
        doing: Callable[[str], None],
        download_bytes: int,
        give_up_after: float,
        light: bool = False,
    ) -> None:
        """light: the device has no learner, and uses the graph of the run instead."""
        self._light = light
        self._graph: BlobRef | None = None
        self._link, self._executor, self._store, self._doing = link, executor, store, doing
        self._download_bytes, self._give_up_after = download_bytes, give_up_after
        self._backoff = Backoff()
        self._received = self._sent = 0

    async def place(self, run: RunId = "", accept_nearest: bool = False) -> PlacementResult:
        """Find the model and fetch it; if the server abstained, only with `accept_nearest`.

        The learner and the data are loaded first, even if the answer will not depend on them, so that their
        faults show before a server is asked.

        Raises Refused if the run cannot place, DataFault, LearnerFault, or Unavailable.
        """
        self._doing("loading the learner and the data")
        await self._executor.start()
        began = time.monotonic()
        answer, model, tried = await self._found(run, accept_nearest)
        seconds = time.monotonic() - began
        return PlacementResult(
            answer.run, answer.assignment, model, seconds, self._received, self._sent, tried, self._graph
        )

    async def _found(
        self, run: RunId, accept_nearest: bool
    ) -> tuple[Placement, Weights | None, tuple[Tried, ...]]:
        """The placement, the model to use, and the models that were tried."""
        self._doing("asking the server for the models to choose among")
        try:
            answer, model = await self._answer(
                run, Wish(MOST_MODELS, self._light, compact=True), accept_nearest
            )
        except BadPayload as error:  # a server of an earlier version does not know the wish
            if self._light:
                raise
            self._doing(f"asking the server which model fits, since it gives none to try: {error.message}")
            answer, model = await self._answer(run, None, accept_nearest)
        if isinstance(answer, Question) and answer.payload.kind in CHOICES:
            try:
                return await self._chosen(answer)
            except TaskFailed as failed:
                if failed.code != NO_CLASSIFIER:
                    raise
                self._doing(f"asking the run to decide, since this network cannot: {failed.message}")
                answer, model = await self._answer(answer.run, None, accept_nearest)
        if isinstance(answer, Question):
            evidence = await self._evidence(answer)
            self._doing("asking the server which model fits these data")
            answer, model = await self._answer(answer.run, evidence, accept_nearest)
        if not isinstance(answer, Placement):
            raise BadPayload("the server asked the same question again", "update the server or this device")
        return answer, model, ()

    async def _chosen(self, question: Question) -> tuple[Placement, Weights, tuple[Tried, ...]]:
        """The placement that this device finds for itself among the models, which are here."""
        self._doing("trying the models on the data")
        task = Task(question.run, 1, 0, 0, "choose", question.payload)
        result = await self._executor.perform(task)
        if isinstance(result, Failure):
            raise TaskFailed(result)
        found = decode(result, {Chosen.kind: Chosen}, lambda weights: {})
        assert isinstance(found, Chosen)
        keys = str(question.payload.parts["names"]).split(" ")
        # The common model has no density.
        near = (*(found.likelihood or (None,) * (len(keys) - 1)), None)
        figures = zip(keys, found.information, found.errors, found.odds, found.agreement, near, strict=True)
        model = result.parts.get("model")
        if not isinstance(model, Weights):
            model = _models(question.payload)[keys.index(found.assignment.cluster)]
        placement = Placement(question.run, found.assignment, model)
        return placement, model, tuple(Tried(*each) for each in figures)

    async def _answer(
        self, run: RunId, evidence: Evidence | Wish | None, accept_nearest: bool
    ) -> tuple[Question | Placement, Weights | None]:
        """The server's answer, and the model to use. On return, the blobs that the answer names are here."""
        asking_again = False
        while True:
            answer = await self._patiently(lambda: self._link.place(run, evidence, accept_nearest))
            try:
                if self._light:
                    await self._open(answer.graph)
                if isinstance(answer, Question):
                    _check(answer.payload)
                    self._doing("fetching what is needed to look at the data")
                    for weights in answer.payload.weights():
                        await self._fetch(weights.blob)
                    return answer, None
                model = answer.model if accept_nearest or not answer.assignment.abstained else None
                if model is not None:
                    self._doing(f"fetching the model of {answer.assignment.cluster}")
                    await self._fetch(model.blob)
                return answer, model
            except NotFound as error:
                # A restarted server has forgotten what it offered to this newcomer: one more question renews
                # it.
                if asking_again:
                    raise
                self._doing(f"asking the server again: {error.message}")
                asking_again = True

    async def _open(self, graph: BlobRef | None) -> None:
        """Let the process that has the data check the run's graph, and use it from now on."""
        if graph is None or graph == self._graph:
            if self._graph is None:
                raise BadPayload("the server gives no graph to use instead of a learner", "set `learner`")
            return
        self._doing("fetching the run's graph")
        weights = reference_of(graph.sha256, graph.size)
        await self._fetch(graph)
        result = await self._executor.perform(
            Task("local", 1, 0, 0, "open", Payload("open", {"graph": weights}))
        )
        if isinstance(result, Failure):
            raise TaskFailed(result)
        self._graph = graph

    async def _evidence(self, question: Question) -> Evidence:
        self._doing("describing the data")
        result = await self._executor.perform(Task(question.run, 1, 0, 0, "describe", question.payload))
        if isinstance(result, Failure):
            raise TaskFailed(result)
        shown = {name: part for name, part in result.parts.items() if isinstance(part, Evidence)}
        if len(shown) != 1:
            raise BadPayload(
                f"the server asks for {question.payload.kind!r}, which this device cannot answer",
                "update this device",
            )
        self._sent += len(payload_to_bytes(Payload("evidence", shown)))
        return next(iter(shown.values()))

    async def _fetch(self, blob: BlobRef) -> None:
        if blob.size > self._download_bytes:
            problem = (
                f"the model has {blob.size} bytes, and this device accepts at most {self._download_bytes}"
            )
            raise Refused(problem, "raise limits.download_bytes in this device's settings")
        if not self._store.has(blob):
            await self._patiently(lambda: self._store.fetch(blob, self._link.fetch))
            self._received += blob.size

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        return await patiently(call, self._backoff, self._give_up_after, self._doing)


def _check(question: Payload) -> None:
    """Refuse more models than were wished for, and such as differ in shape, before any byte is fetched."""
    if question.kind not in CHOICES:
        return
    found = _models(question)
    count = len(found) or len(str(question.parts.get("names")).split(" "))
    if not 2 <= count <= MOST_MODELS + 1:
        raise BadPayload(f"the server gives {count} models", f"2 to {MOST_MODELS + 1} are taken")
    for weights in found:
        check_manifest(weights.manifest, found[0].manifest)


def _models(question: Payload) -> tuple[Weights, ...]:
    """The models to choose among; what else there is describes the clusters' data."""
    part = question.parts.get("models")
    return tuple(each for each in part if isinstance(each, Weights)) if isinstance(part, tuple) else ()


def save(result: PlacementResult, store: BlobStore, folder: Path) -> Path:
    """Write the model where `fedclient predict` looks for it, and return its path. Raises StorageFault."""
    from safetensors.numpy import save_file

    assert result.model is not None
    path = folder / MODEL
    make_folder(folder)
    if result.graph is not None:
        write(folder / GRAPH, b"".join(store.chunks(result.graph, 0)))
    facts = {"run": result.run, "cluster": result.assignment.cluster}
    if result.privacy:
        facts["privacy"] = f"of the device that fetched it: {line(result.privacy)}"
    with storing(path), temporary(folder) as file:
        save_file(dict(store.load(result.model)), file.name, facts)
        settle(file, path)
    write(folder / PLACEMENT, json.dumps(result.facts()).encode())
    return path
