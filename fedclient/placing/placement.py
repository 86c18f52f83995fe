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
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedclient.faults import TaskFailed
from fedclient.placing.asking import CHOICES, MOST_MODELS, Asks, models_of, wanted
from fedclient.store.blobs import BlobStore
from fedclient.store.privacy_report import line
from fedclient.store.state import GRAPH, MODEL, PLACEMENT
from fedclient.work.executor import Executor
from shoal.core.errors import BadPayload
from shoal.core.exchange.choosing import NO_CLASSIFIER, Chosen, Wish
from shoal.core.exchange.link import Failure, Placement, Question, Task
from shoal.core.exchange.parts import ClusterAssignment, Evidence
from shoal.core.exchange.payload import BlobRef, Payload, Weights, decode
from shoal.core.exchange.wire import payload_to_bytes
from shoal.core.inference.graph.model import reference_of
from shoal.core.types import RunId
from shoal.shell.disk import make_folder, settle, storing, temporary, write


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
    """Places this device once. asks: reaches the server, and fetches what its answers name.

    light: the device has no learner, and uses the graph of the run instead.
    """

    def __init__(
        self, asks: Asks, executor: Executor, doing: Callable[[str], None], light: bool = False
    ) -> None:
        self._asks, self._executor, self._doing, self._light = asks, executor, doing, light
        self._graph: BlobRef | None = None
        self._sent = 0

    async def place(
        self, run: RunId = "", accept_nearest: bool = False, look_first: bool = True
    ) -> PlacementResult:
        """Find the model and fetch it; if the server abstained, only with `accept_nearest`.

        look_first: load the learner and the data before a server is asked, even if the answer will not depend
        on them, so that their faults show first.

        Raises Refused if the run cannot place, DataFault, LearnerFault, or Unavailable.
        """
        if look_first:
            self._doing("loading the learner and the data")
            await self._executor.start()
        began = time.monotonic()
        answer, model, tried = await self._found(run, accept_nearest)
        seconds = time.monotonic() - began
        return PlacementResult(
            answer.run, answer.assignment, model, seconds, self._asks.received, self._sent, tried, self._graph
        )

    async def _found(
        self, run: RunId, accept_nearest: bool
    ) -> tuple[Placement, Weights | None, tuple[Tried, ...]]:
        """The placement, the model to use, and the models that were tried."""
        self._doing("asking the server for the models to choose among")
        try:
            answer = await self._ask(run, Wish(MOST_MODELS, self._light, compact=True), accept_nearest)
        except BadPayload as error:  # a server of an earlier version does not know the wish
            if self._light:
                raise
            self._doing(f"asking the server which model fits, since it gives none to try: {error.message}")
            answer = await self._ask(run, None, accept_nearest)
        if isinstance(answer, Question) and answer.payload.kind in CHOICES:
            try:
                return await self._chosen(answer)
            except TaskFailed as failed:
                if failed.code != NO_CLASSIFIER:
                    raise
                self._doing(f"asking the run to decide, since this network cannot: {failed.message}")
                answer = await self._ask(answer.run, None, accept_nearest)
        if isinstance(answer, Question):
            evidence = await self._evidence(answer)
            self._doing("asking the server which model fits these data")
            answer = await self._ask(answer.run, evidence, accept_nearest)
        if not isinstance(answer, Placement):
            raise BadPayload("the server asked the same question again", "update the server or this device")
        return answer, wanted(answer, accept_nearest), ()

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
        await self._performed(Task("local", 1, 0, 0, "open", Payload("open", {"graph": weights})))
        self._graph = graph

    async def _chosen(self, question: Question) -> tuple[Placement, Weights, tuple[Tried, ...]]:
        """The placement that this device finds for itself among the models, which are here."""
        self._doing("trying the models on the data")
        result = await self._performed(Task(question.run, 1, 0, 0, "choose", question.payload))
        found = decode(result, {Chosen.kind: Chosen}, lambda weights: {})
        assert isinstance(found, Chosen)
        keys = str(question.payload.parts["names"]).split(" ")
        # The common model has no density.
        near = (*(found.likelihood or (None,) * (len(keys) - 1)), None)
        figures = zip(keys, found.information, found.errors, found.odds, found.agreement, near, strict=True)
        model = result.parts.get("model")
        if not isinstance(model, Weights):
            model = models_of(question.payload)[keys.index(found.assignment.cluster)]
        placement = Placement(question.run, found.assignment, model)
        return placement, model, tuple(Tried(*each) for each in figures)

    async def _evidence(self, question: Question) -> Evidence:
        self._doing("describing the data")
        result = await self._performed(Task(question.run, 1, 0, 0, "describe", question.payload))
        shown = {name: part for name, part in result.parts.items() if isinstance(part, Evidence)}
        if len(shown) != 1:
            raise BadPayload(
                f"the server asks for {question.payload.kind!r}, which this device cannot answer",
                "update this device",
            )
        self._sent += len(payload_to_bytes(Payload("evidence", shown)))
        return next(iter(shown.values()))

    async def _performed(self, task: Task) -> Payload:
        result = await self._executor.perform(task)
        if isinstance(result, Failure):
            raise TaskFailed(result)
        return result


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
