"""A newcomer votes for a cluster by its samples' latents, and its account draws the vote."""

from collections.abc import Callable, Iterable

import numpy as np

from shoal.core.errors import BadPayload
from shoal.core.exchange.choosing import ClusterDensities
from shoal.core.exchange.choosing.vote import Vote, Voted
from shoal.core.exchange.parts import Ballot, FloatArray, Integers
from shoal.core.inference.context import DataContext
from shoal.core.inference.nearness import log_densities
from shoal.core.privacy.noise.chance import Entropy
from shoal.core.privacy.noise.vote import drawn, scores
from shoal.core.privacy.payment import voting
from shoal.core.types import Array


def voted(
    question: Vote,
    described: ClusterDensities,
    context: DataContext,
    projected: Callable[[Array], Iterable[FloatArray]],
) -> Voted:
    """The answer, of all samples but those of a test part. Repeated samples count once.

    described: the question's. projected: the projected latents (B, l) of the samples with these numbers, in
    any order, each computed so that no other sample changes it. Raises OverBudget.
    """

    def exact() -> Integers:
        first = np.unique(context.distinct(context.usable, labels=False), return_index=True)[1]
        found = np.concatenate(list(projected(first)))
        dims = described.clusters["means"].shape[2]
        if found.shape[1] != dims:
            raise BadPayload(f"densities of {dims} dimensions came with a projector to {found.shape[1]}")
        return scores(log_densities(found, described.clusters))

    def noised(found: Integers, entropy: Entropy) -> int:
        return drawn(found, question.epsilon, entropy)

    choice = context.pay(voting(question.epsilon, question.digest, context.version()), exact, noised)
    return Voted(Ballot(question.keys[choice], question.epsilon))
