"""Which blobs hold a run's tensors, so that stored tensors are never packed or hashed again."""

from collections.abc import Mapping
from typing import Any

from fedserver.store.content.blobs import Blobs
from fedserver.store.content.checked import StoredTensors
from fedserver.store.content.in_file import FileTensors
from fedserver.store.runs import Runs
from shoal.core.engine.checkpoint import Structure, blobs_of, decode, encode, is_apart
from shoal.core.exchange.messages import Message
from shoal.core.exchange.payload import Payload, Weights
from shoal.core.exchange.payload import encode as encode_message
from shoal.core.exchange.tensors import digest
from shoal.core.types import ModelKey, RunId, Tensors

VERIFIED_SECONDS = 600.0
"""Seconds in which the blobs of a question are not read again before it is asked."""


class BlobCache:
    """Finds tensors by the identity of their objects, since a state and its tasks share models.

    For the store's thread only, but for `known`.
    """

    def __init__(self, runs: Runs, blobs: Blobs, run: RunId) -> None:
        self._runs, self._blobs, self._run = runs, blobs, run
        self._weights: dict[int, tuple[Tensors, Weights]] = {}
        self._payloads: dict[int, tuple[Message, Payload]] = {}
        self._question: tuple[Message | None, Payload | None] = None, None

    def payload(self, message: Message) -> Payload:
        """The payload of a task. A message is encoded only once, no matter how many devices get it."""
        if id(message) not in self._payloads:
            payload = encode_message(message, lambda tensors: self._keep(tensors))
            self._payloads[id(message)] = (message, payload)
        return self._payloads[id(message)][1]

    def known(self, message: Message) -> Payload | None:
        """What `payload` has made of this message before, if anything. Any thread may ask."""
        found = self._payloads.get(id(message))
        return found[1] if found else None

    def question(self, message: Message) -> Payload:
        """The payload of the question that a newcomer is asked. Many are asked the same one after the other,
        which is written once, as long as its blobs are sound and the run keeps them."""
        asked, payload = self._question
        if payload is None or asked is not message or any(map(self._is_lost, payload.weights())):
            payload = encode_message(message, lambda tensors: self.weights(tensors))
            self._question = message, payload
        return payload

    def _is_lost(self, weights: Weights) -> bool:
        return bool(self._blobs.damage(weights.blob.sha256, VERIFIED_SECONDS))

    def weights(self, tensors: Tensors) -> Weights:
        """The blob of these tensors. A new blob is stored, but not cached."""
        if isinstance(tensors, StoredTensors):  # of a report: the state now keeps what the report brought
            self._blobs.make_durable(tensors.weights.blob.sha256)
            return tensors.weights
        known = self._weights.get(id(tensors))
        return known[1] if known else self._runs.keep(self._run, tensors)

    def names_of(self, models: Mapping[ModelKey, Tensors]) -> dict[ModelKey, str]:
        """The SHA-256 of each of a state's models, after the state was stored."""
        return {key: self.weights(model).blob.sha256 for key, model in models.items()}

    def store_state(self, hint: Any, state: object) -> Structure:
        """The structure under which a state is saved.

        Entries that the state does not refer to are dropped: they belonged to the previous round.
        """
        structure = encode(hint, state, lambda tensors: self._keep(tensors))
        needed = blobs_of(structure)
        self._weights = {key: known for key, known in self._weights.items() if known[1].blob.sha256 in needed}
        self._payloads = {}
        return structure

    def load_state(self, hint: Any, round: int | None = None) -> Any:
        """The state that a round opened with: the current round, or an earlier one whose checkpoint is
        kept."""
        return self.load_structure(hint, self._runs.checkpoint(self._run, round))

    def load_structure(self, hint: Any, structure: Structure) -> Any:
        """The state that has this structure."""
        return decode(hint, structure, lambda weights: self.load(weights))

    def models_of(self, hint: Any, round: int) -> dict[ModelKey, Weights]:
        """The blobs of the models that a round opened with, which are not read themselves."""
        places: dict[int, tuple[Tensors, Weights]] = {}

        def note(weights: Weights) -> Tensors:
            stand_in: Tensors = self._blobs.read(weights) if is_apart(weights) else {}
            places[id(stand_in)] = (stand_in, weights)
            return stand_in

        state = decode(hint, self._runs.checkpoint(self._run, round), note)
        return {key: places[id(model)][1] for key, model in state.models.items()}

    def load(self, weights: Weights) -> Tensors:
        tensors = self._blobs.safe(weights)
        self._weights[id(tensors)] = (tensors, weights)
        return tensors

    def restore(self, name: str) -> bool:
        """Write a blob again from the tensors that the run has in memory. False if they are not there."""
        for tensors, weights in list(self._weights.values()):
            if weights.blob.sha256 == name and not isinstance(tensors, FileTensors):
                if digest(tensors) != name:  # some may be read from the damaged file
                    return False
                self._blobs.keep(tensors)
                return True
        return False

    def _keep(self, tensors: Tensors) -> Weights:
        weights = self.weights(tensors)
        self._weights[id(tensors)] = (tensors, weights)
        return weights
