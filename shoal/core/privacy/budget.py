"""What the owner of a device allows to be spent, and whether a release fits. The server has no say in it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shoal.core.errors import ConfigError, OverBudget
from shoal.core.exchange.parts import MAX_GROUP
from shoal.core.exchange.privacy_modes import MODES
from shoal.core.privacy.cost import ROUNDING, Cost
from shoal.core.privacy.report import OF_TRAINING, OPEN

NOTHING = Cost()
NOTHING_LEFT = 1e-3
"""An epsilon of which no release can be made that tells anything: to offer one would be no help."""
EPSILON, DELTA = MODES["balanced"].guarantee or (0.0, 0.0)


@dataclass(frozen=True)
class Budget:
    """The owner's limits, in the device's own settings.

    epsilon: for all releases of one data source within `window_days`, at `delta`. The default is one of mode
    `balanced`.
    delta: of both limits.
    total_epsilon: for all releases ever, at `delta`. The default is three of mode `balanced`.
    window_days: how long a release is given again instead of a new one, whatever becomes of the data, and
    after how long `epsilon` can be spent again. Dates are public: no answer tells whether data changed.
    run_epsilon: the most that one run may spend of it; 0: all of it.
    group_size: samples that may stem from one person; the limits are for all of them together.
    allow_unprotected: whether descriptors and bounds of latents may leave without any guarantee, where a run
    asks for them so. They are noted, and have no epsilon.
    allow_plain_weights: the same for weights that were not trained by DP-SGD, and for accuracies and losses.
    None: the owner is asked for each run.
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
        return max(0.0, min(self._room(getattr(self, each.name), each.used) for each in limits))

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
        limits = self._limits(of_data, in_all, of_run, reserved, reserved_of_run)
        over = [each for each in limits if self._lacks_room(each, cost)]
        if not over:
            return
        first = over[0]
        left = self.epsilon_of(Cost(self.left(of_data, in_all, of_run, reserved, reserved_of_run)))
        asked = what or ("DP-SGD" if cost.curve else "a release")
        others = "other runs" if reserved and first.name != "run_epsilon" else "other devices in this run"
        held = f", {self.epsilon_of(first.kept):.4g} is reserved for {others}" if first.kept else ""
        rest = f"one of up to {left:.4g} would fit" if left > NOTHING_LEFT else "nothing is left"
        again = "" if left > NOTHING_LEFT else self._free_again(over)
        raise OverBudget(
            f"{asked} of epsilon {self.epsilon_of(cost):.4g} is over this device's budget: of epsilon "
            f"{getattr(self, first.name):g} for {first.of_what}, {self.epsilon_of(first.spent):.4g} is "
            f"spent{held}; {rest} (delta {self.delta:g}){again}",
            self._hint(asked, cost, over, left > NOTHING_LEFT),
        )

    def _limits(
        self, of_data: Cost, in_all: Cost, of_run: Cost | None, reserved: Cost, reserved_of_run: Cost
    ) -> list["_Limit"]:
        kept = reserved + reserved_of_run
        found = [
            _Limit("epsilon", of_data, kept, "these data"),
            _Limit("total_epsilon", in_all, kept, "all releases of this device"),
        ]
        if self.run_epsilon and of_run is not None:
            found.append(_Limit("run_epsilon", of_run, reserved_of_run, "this run"))
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

    def _lacks_room(self, limit: "_Limit", cost: Cost) -> bool:
        return self._room(getattr(self, limit.name), limit.used + cost) < -ROUNDING * cost.rho

    def _free_again(self, over: Sequence["_Limit"]) -> str:
        """When what is spent can be spent again, if it ever can."""
        lasting = next((each.name for each in over if each.name != "epsilon"), "")
        if lasting:
            return f"; what is spent of privacy.{lasting} is never free again"
        return f"; what is spent is free again after {self.window_days:g} days" if over[0].spent else ""

    def _hint(self, asked: str, cost: Cost, over: Sequence["_Limit"], is_some_left: bool) -> str:
        """The ways out. over: the limits that have no room for the cost."""
        smaller = {"DP-SGD": "dp_epsilon", "a vote": "vote_epsilon"}.get(asked, "epsilon (privacy=explicit)")
        ways = [f"ask the run's operator for a smaller {smaller}"] if is_some_left else []
        if any(each.kept for each in over):
            ways.append("wait for those runs")
            ways.append("refuse one (`fedclient consent revoke`)")
        ways += self._raised(cost, over)
        if not is_some_left and (without := self._without(asked, cost)):
            ways.append(f"ask the run's operator for a run {without}")
        return ", or ".join(filter(None, (", ".join(ways[:-1]), *ways[-1:])))

    def _raised(self, cost: Cost, over: Sequence["_Limit"]) -> list[str]:
        """What to set each limit to; nothing, where nothing that can be set has room for it."""
        needed = {each.name: (each.used + cost).limit(self.delta, self.group_size) for each in over}
        if any(map(math.isinf, needed.values())):
            return []
        settings = [
            f"privacy.{name} to {math.ceil(100.0 * least) / 100.0:.2f} or more"
            for name, least in needed.items()
        ]
        return [f"set {' and '.join(settings)} in this device's settings"]

    def _without(self, asked: str, cost: Cost) -> str:
        """A run that costs nothing, if there is one and this device takes part in such."""
        trains = bool(cost.curve)
        ruled_out = self.allow_unprotected is False or (trains and self.allow_plain_weights is False)
        if ruled_out or asked == "a vote":
            return ""
        off = "with privacy=off" if asked != "DP-SGD" else ""
        plain = "without dp_epsilon" if trains else ""
        return f"{' and '.join(filter(None, (off, plain)))}, which has no guarantee"


class _Limit(NamedTuple):
    """What is spent of a limit, what is reserved of it (`kept`), and on what."""

    name: str
    spent: Cost
    kept: Cost
    of_what: str

    @property
    def used(self) -> Cost:
        return self.spent + self.kept
