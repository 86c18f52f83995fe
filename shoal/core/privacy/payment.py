"""What a device is asked for with a guarantee, and what that costs: one record, whatever it is."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from shoal.core.exchange.parts import PrivacySettings
from shoal.core.privacy.cost import Cost
from shoal.core.privacy.dpsgd import TrainingTerms
from shoal.core.privacy.noise import response, vote
from shoal.core.privacy.terms import Terms

Fact = str | int | float
DESCRIPTOR, TRAINING, ACCURACY, VOTE = "descriptor", "training", "accuracy", "voting"
WATCH = "watching"
"""What can be paid for, in the words that people read. Answers are stored under these names, and the server
records a descriptor by the hash of the same bytes."""


@dataclass(frozen=True)
class Payment:
    """kind: of what is asked. cost: for one sample.

    question: SHA-256 of each thing besides the data that decides the answer, such as encoder and projector;
    () for what is never given again, but made and paid for each time. data: version of all of the device's
    data, labels apart (`shoal.core.data.version`). facts: the terms, from which the cost follows.
    """

    kind: str
    cost: Cost
    question: tuple[str, ...]
    data: str
    facts: Mapping[str, Fact]

    def answers(self, asked: "Payment", in_part: bool = False) -> bool:
        """Whether what this paid for can be given again where `asked` is: the same question on the same
        terms, whatever has become of the data since, so that no answer tells whether they have changed.

        A description with classes can be given where none are asked for, with any labels. in_part: one
        without classes, too, where some are.
        """
        own, wanted = self.facts.get("classes", 0), asked.facts.get("classes", 0)
        if not self.question or not (own == wanted or wanted == 0 or (in_part and own == 0)):
            return False
        terms = (self.kind, self.question, {**self.facts, "classes": 0})
        return terms == (asked.kind, asked.question, {**asked.facts, "classes": 0})


def description(settings: PrivacySettings, terms: Terms, encoder: str, projector: str, data: str) -> Payment:
    """Of noisy sums of latents. encoder, projector: SHA-256 of their tensors."""
    facts: Mapping[str, Fact] = {
        "mode": settings.mode,
        "epsilon": settings.epsilon,
        "delta": settings.delta,
        "group_size": settings.group_size,
        "classes": terms.classes,
        "sigma": terms.sigma,
    }
    return Payment(DESCRIPTOR, terms.cost, (encoder, projector), data, facts)


def training(terms: TrainingTerms, data: str, of: str = "weights") -> Payment:
    """Of one task's DP-SGD. Asked for again, it is done again. of: what is trained, for people."""
    asked = {"clip": terms.clip, "noise": terms.noise, "rate": terms.rate, "steps": terms.steps}
    return Payment(TRAINING, terms.cost, (), data, {"of": of, **asked})


def counting(rho: float, model: str, part: str, data: str) -> Payment:
    """Of a noisy count of the samples of a part that a model is right about: one sample moves it by at most
    1. model: SHA-256 of its tensors."""
    return Payment(ACCURACY, Cost(rho), (model,), data, {"part": part, "rho": rho})


def voting(epsilon: float, question: str, data: str) -> Payment:
    """Of a vote (`shoal.core.privacy.noise.vote`). question: SHA-256 of what is voted on, and by what."""
    return Payment(VOTE, vote.cost(epsilon), (question,), data, {"epsilon": epsilon})


def watching(answer: str, data: str) -> Payment:
    """Of a randomized answer to whether the data have moved (`shoal.core.privacy.noise.response`). answer:
    names this one: the next has another name, since it is made and paid for again."""
    question = sha256(answer.encode()).hexdigest()
    return Payment(WATCH, vote.cost(response.WATCHING), (question,), data, {"epsilon": response.WATCHING})
