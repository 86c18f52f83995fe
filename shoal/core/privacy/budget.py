"""What the owner of a device allows to be spent, and whether a release fits. The server has no say in it."""

import math
from dataclasses import dataclass

from shoal.core.errors import ConfigError, OverBudget
from shoal.core.exchange.parts import MAX_GROUP
from shoal.core.exchange.privacy_modes import MODES
from shoal.core.privacy.cost import ROUNDING, Cost
from shoal.core.privacy.report import OF_TRAINING, OPEN

NOTHING = Cost()
EPSILON, DELTA = MODES["balanced"].guarantee or (0.0, 0.0)


@dataclass(frozen=True)
class Budget:
    """The owner's limits, in the device's own settings.

    epsilon: for all releases of one data source within `window_days`, at `delta`. The default is one of mode
    `balanced`. total_epsilon: for all releases ever, at `delta`. The default is three of mode `balanced`.
    window_days: how long a release is given again instead of a new one, whatever becomes of the data, and
    after how long `epsilon` can be spent again. Dates are public: no answer tells whether data changed.
    run_epsilon: the most that one run may spend of it; 0: all of it.
    group_size: samples that may stem from one person; the limits are for all of them together.
    allow_unprotected: whether descriptors and bounds of latents may leave without any guarantee, where a run
    asks for them so. They are noted, and have no epsilon. allow_plain_weights: the same for weights that were
    not trained by DP-SGD, and for accuracies and losses. None: the owner is asked for each run.
    """

    epsilon: float = EPSILON
    delta: float = DELTA
    total_epsilon: float = 2 * EPSILON
    window_days: float = 30.0
    run_epsilon: float = 0.0
    group_size: int = 1
    allow_unprotected: bool | None = True
    allow_plain_weights: bool | None = True

    def __post_init__(self) -> None:
        for name in ("epsilon", "total_epsilon", "run_epsilon"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}", "use 0 or more, such as 5")
        if not 0.0 < self.window_days < math.inf:
            raise ConfigError(f"window_days is {self.window_days}", "use a number above 0, such as 30")
        if not 0.0 < self.delta < 1.0:
            raise ConfigError(f"delta is {self.delta}", "use a number between 0 and 1, such as 1e-6")
        if not 1 <= self.group_size <= MAX_GROUP:
            raise ConfigError(f"group_size is {self.group_size}", f"use 1 to {MAX_GROUP}")

    def epsilon_of(self, cost: Cost) -> float:
        """The true epsilon, at the owner's delta and group size, of releases with this cost."""
        return cost.epsilon(self.delta, self.group_size)

    def left(
        self,
        of_data: Cost,
        in_all: Cost,
        of_run: Cost | None = None,
        reserved: Cost = NOTHING,
        reserved_of_run: Cost = NOTHING,
    ) -> float:
        """rho for one sample that may still be spent.

        of_data: spent on these data within the window. in_all: ever, on all data. of_run: by this run.
        reserved: for other runs, and not yet spent by them. reserved_of_run: the same for this run, by other
        devices that share the ledger.
        """
        limits = self._limits(of_data, in_all, of_run, reserved, reserved_of_run)
        return max(0.0, min(self._room(getattr(self, name), spent + kept) for name, spent, kept, _ in limits))

    def check(
        self,
        cost: Cost,
        of_data: Cost,
        in_all: Cost,
        of_run: Cost | None = None,
        what: str = "",
        reserved: Cost = NOTHING,
        reserved_of_run: Cost = NOTHING,
    ) -> None:
        """Raise OverBudget unless a release of this cost fits; arguments as in `left`.

        what: the release is, in the error; by default DP-SGD if its cost is a curve.
        """
        arguments = (of_data, in_all, of_run, reserved, reserved_of_run)
        for name, spent, kept, of_what in self._limits(*arguments):
            allowed = getattr(self, name)
            if self._room(allowed, spent + kept + cost) < -ROUNDING * cost.rho:
                left = self.epsilon_of(Cost(self.left(*arguments)))
                asked = what or ("DP-SGD" if cost.curve else "a release")
                runs = reserved and name != "run_epsilon"
                others = "other runs" if runs else "other devices in this run"
                held = f", {self.epsilon_of(kept):.4g} is reserved for {others}" if kept else ""
                raise OverBudget(
                    f"{asked} of epsilon {self.epsilon_of(cost):.4g} is over this device's budget: of "
                    f"epsilon {allowed:g} for {of_what}, {self.epsilon_of(spent):.4g} is spent{held}; one "
                    f"of up to {left:.4g} would fit (delta {self.delta:g})",
                    self._hint(
                        asked, name, (spent + kept + cost).limit(self.delta, self.group_size), bool(kept)
                    ),
                )

    def _limits(
        self, of_data: Cost, in_all: Cost, of_run: Cost | None, reserved: Cost, reserved_of_run: Cost
    ) -> list[tuple[str, Cost, Cost, str]]:
        """Every limit: its name, what is spent of it, what is reserved of it, and on what."""
        kept = reserved + reserved_of_run
        found = [
            ("epsilon", of_data, kept, "these data"),
            ("total_epsilon", in_all, kept, "all releases of this device"),
        ]
        if self.run_epsilon and of_run is not None:
            found.append(("run_epsilon", of_run, reserved_of_run, "this run"))
        return found

    def allows(self, what: str) -> bool | None:
        """Whether this, such as one of `shoal.core.privacy.report.OPEN`, may leave without a guarantee.

        None: where the owner consents.
        """
        if what in OF_TRAINING:
            return self.allow_plain_weights
        known = (
            what in OPEN.values()
        )  # reports of other kinds may contain everything, weights and figures too
        both = {self.allow_unprotected} if known else {self.allow_unprotected, self.allow_plain_weights}
        return False if False in both else None if None in both else True

    def _room(self, epsilon: float, spent: Cost) -> float:
        return spent.room(epsilon, self.delta, self.group_size)

    def _hint(self, asked: str, name: str, required: float, others: bool) -> str:
        """name: of the limit that would have to be at least `required`. others: whether runs hold a part."""
        less = {"DP-SGD": "dp_epsilon", "a vote": "vote_epsilon"}.get(asked, "epsilon (privacy=explicit)")
        ask = f"ask the run's operator for a smaller {less}"
        if others:
            ask += ", wait for those runs, or refuse one (`fedclient consent show`, `revoke`)"
        if math.isinf(required):  # nothing that can be set has room for it
            return ask
        limit = math.ceil(100.0 * required) / 100.0
        return f"{ask}, or set privacy.{name} to {limit:.2f} or more in this device's settings"
