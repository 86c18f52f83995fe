"""What tests ask accounts for: descriptions, training, counts and votes, as device halves do."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from shoal.core.exchange.parts import Descriptor, Integers, PrivacySettings
from shoal.core.exchange.payload import Payload
from shoal.core.exchange.wire import payload_to_bytes
from shoal.core.privacy.accountant import Account
from shoal.core.privacy.cost import ORDERS, Cost
from shoal.core.privacy.dpsgd import TrainingTerms
from shoal.core.privacy.noise.chance import Entropy
from shoal.core.privacy.noise.vote import drawn
from shoal.core.privacy.payment import Payment, counting, description, training, voting
from shoal.core.privacy.release import noisy_count, release_sums
from shoal.core.privacy.sums import ExactSums, sums_of
from shoal.core.privacy.terms import terms
from shoal.core.types import Tensors

BALANCED, STRICT = PrivacySettings("balanced", 5.0, 1e-6), PrivacySettings("strict", 1.0, 1e-6)
SAMPLES, DIMS, CLASSES = 400, 3, 3
PROJECTOR, DATA = "a" * 64, "d" * 64
ONE_COUNT, ONE_VOTE = counting(0.01, "m" * 64, "test", DATA), voting(1.0, "q" * 64, DATA)


def exact() -> ExactSums:
    chance = np.random.default_rng(0)
    latents, labels = chance.normal(size=(SAMPLES, DIMS)), np.arange(SAMPLES) % CLASSES
    return sums_of([(latents, labels)], 1.0, DIMS, CLASSES)


def order(
    settings: PrivacySettings = BALANCED, encoder: str = "e", data: str = "d", classes: int = CLASSES
) -> Payment:
    agreed = replace(terms(settings, SAMPLES, CLASSES), classes=classes)
    return description(settings, agreed, encoder * 64, PROJECTOR, data * 64)


def settings_of(asked: Payment) -> PrivacySettings:
    names = ("mode", "epsilon", "delta", "group_size")
    return PrivacySettings(**{name: asked.facts[name] for name in names})  # type: ignore[arg-type]


def released(account: Account, asked: Payment, exact: Callable[[], ExactSums]) -> Descriptor:
    agreed = replace(terms(settings_of(asked), SAMPLES, CLASSES), classes=int(asked.facts["classes"]))

    def noised(sums: ExactSums, entropy: Entropy) -> Descriptor:
        return release_sums(sums, settings_of(asked), agreed, PROJECTOR, entropy)

    return account.pay(asked, exact, noised)


def counted(account: Account, asked: Payment, exact: Callable[[], int]) -> int:
    return account.pay(asked, exact, lambda count, entropy: noisy_count(count, asked.cost.rho, entropy))


def voted(account: Account, asked: Payment, exact: Callable[[], Integers]) -> int:
    epsilon = float(asked.facts["epsilon"])
    return account.pay(asked, exact, lambda scores, entropy: drawn(scores, epsilon, entropy))


def lesson(data: str = "d") -> Payment:
    """Training of about epsilon 2."""
    curve = tuple(0.085 * order for order in ORDERS)
    return training(TrainingTerms(1.0, 1.1, 0.1, 20, Cost(curve=curve)), data * 64)


def work(entropy: Entropy) -> Tensors:
    return {"w": np.frombuffer(entropy(8), np.float64)}


def trained(account: Account, asked: Payment, work: Callable[[Entropy], Tensors]) -> Tensors:
    return account.pay(asked, lambda: None, lambda _, entropy: work(entropy))


def sent(descriptor: Descriptor) -> bytes:
    """A description as it is stored."""
    return payload_to_bytes(Payload("descriptor", {"descriptor": descriptor}))
