"""Which of a run's tensors lie in which blob: what is stored already is never packed or hashed again."""

from typing import Any

from fedserver.store.blobs import Blobs, StoredTensors
from fedserver.store.runs import Runs
from shoal.core.engine.checkpoint import Structure, blobs_of, decode, encode
from shoal.core.exchange.messages import Message
from shoal.core.exchange.payload import Payload, Weights
from shoal.core.exchange.payload import encode as encode_message
from shoal.core.types import ModelKey, RunId, Tensors


class BlobCache:
    """Goes by the identity of the objects: a state and its tasks share models. For the store's thread."""

    def __init__(self, runs: Runs, blobs: Blobs, run: RunId) -> None:
        self._runs, self._blobs, self._run = runs, blobs, run
        self._weights: dict[int, tuple[Tensors, Weights]] = {}
        self._payloads: dict[int, tuple[Message, Payload]] = {}

    def payload(self, message: Message) -> Payload:
        """A task as it is sent. The same message is encoded once, however many devices get it."""
        if id(message) not in self._payloads:
            payload = encode_message(message, lambda tensors: self._keep(tensors))
            self._payloads[id(message)] = (message, payload)
        return self._payloads[id(message)][1]

    def question(self, message: Message) -> Payload:
        """What a newcomer is asked, as it is sent. Nothing of it is remembered."""
        return encode_message(message, lambda tensors: self.weights(tensors))

    def weights(self, tensors: Tensors) -> Weights:
        """The blob of these tensors. It is not remembered if it is a new one."""
        if isinstance(tensors, StoredTensors):
            return tensors.weights
        known = self._weights.get(id(tensors))
        return known[1] if known else self._runs.keep(self._run, tensors)

    def store_state(self, hint: Any, state: object) -> Structure:
        """A state as it is saved. What it does not refer to is forgotten: it was for the round before."""
        structure = encode(hint, state, lambda tensors: self._keep(tensors))
        needed = blobs_of(structure)
        self._weights = {key: known for key, known in self._weights.items() if known[1].blob.sha256 in needed}
        self._payloads = {}
        return structure

    def load_state(self, hint: Any, round: int | None = None) -> Any:
        """The state that a round of the run opened with: the current one, or another that is kept."""
        return decode(hint, self._runs.checkpoint(self._run, round), lambda weights: self.load(weights))

    def models_of(self, hint: Any, round: int) -> dict[ModelKey, Weights]:
        """Where the models are that a round opened with. No tensor is opened."""
        places: dict[int, tuple[Tensors, Weights]] = {}

        def note(weights: Weights) -> Tensors:
            stand_in: Tensors = {}
            places[id(stand_in)] = (stand_in, weights)
            return stand_in

        state = decode(hint, self._runs.checkpoint(self._run, round), note)
        return {key: places[id(model)][1] for key, model in state.models.items()}

    def load(self, weights: Weights) -> Tensors:
        tensors = self._blobs.load(weights)
        self._weights[id(tensors)] = (tensors, weights)
        return tensors

    def _keep(self, tensors: Tensors) -> Weights:
        weights = self.weights(tensors)
        self._weights[id(tensors)] = (tensors, weights)
        return weights
