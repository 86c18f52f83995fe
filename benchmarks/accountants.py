"""How much less a numerical accountant would report than ours, for releases that were all fixed in advance.

    python -m benchmarks.accountants

For releases of descriptors, for DP-SGD and for both together: the epsilon that `fedclient status` prints, the
one of dp-accounting's accountant of privacy loss distributions (PLD), and the difference in percent. The
discrete Gaussian noise of descriptors counts as continuous there. Takes some ten seconds; prints JSON.
"""

import json
from collections.abc import Iterator

from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant

from shoal.core.device_kit.training.private import terms
from shoal.core.exchange.messages import PrivateTraining, TrainingSettings
from shoal.core.exchange.privacy_modes import MODES
from shoal.core.privacy.cost import Cost, rho_for, rho_of, sigma_of, total

DELTA = 1e-6
ROUNDS = 20


def cases() -> Iterator[tuple[str, Cost, list[dp_event.DpEvent]]]:
    """What is released: its name, our cost, and the same for dp-accounting."""
    for mode in ("balanced", "strict"):
        epsilon, delta = MODES[mode].guarantee or (0.0, 0.0)
        for count in (1, 3):
            sigma = sigma_of(rho_for(epsilon, delta))
            event = dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(sigma), count)
            yield f"{mode}, {count} times", Cost(count * rho_of(sigma)), [event]
    for epsilon in (1.0, 3.0, 8.0):
        for samples in (600, 6000):
            cost, event = lessons(epsilon, samples)
            yield f"DP-SGD, epsilon {epsilon:g}, {samples} samples", cost, [event]
    sigma, (cost, event) = sigma_of(rho_for(3.0, DELTA)), lessons(3.0, 600)
    both, descriptor = total([cost, Cost(rho_of(sigma))]), dp_event.GaussianDpEvent(sigma)
    yield "a descriptor and DP-SGD, epsilon 3 each, 600 samples", both, [event, descriptor]


def lessons(epsilon: float, samples: int) -> tuple[Cost, dp_event.DpEvent]:
    """Training in batches of 64, one epoch in each round."""
    asked = PrivateTraining(epsilon=epsilon, delta=DELTA, rounds=ROUNDS)
    agreed = terms(asked, TrainingSettings(epochs=1, batch_size=64), samples)
    step = dp_event.PoissonSampledDpEvent(agreed.rate, dp_event.GaussianDpEvent(agreed.noise))
    return total([agreed.cost] * ROUNDS), dp_event.SelfComposedDpEvent(step, agreed.steps * ROUNDS)


def main() -> None:
    found = []
    for name, cost, events in cases():
        ours, numerical = cost.epsilon(DELTA), PLDAccountant()
        for event in events:
            numerical.compose(event)
        exact = float(numerical.get_epsilon(DELTA))
        found.append(
            {
                "released": name,
                "ours": round(ours, 3),
                "pld": round(exact, 3),
                "less_percent": round(100.0 * (1.0 - exact / ours), 1),
            }
        )
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
