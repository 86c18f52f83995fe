"""Statistics of the fleet's data, and of each group of its devices: count, mean, deviation, quantiles and a
histogram of each feature. Nothing is trained but histograms; see `shoal.core.data.histogram`.

    features   how many features the samples have
    count      devices count their data into bins, three times, and each time in bins that lie nearer to where
               the data are

With `of`, each cluster of an earlier run has statistics of its own, and devices without a cluster are left
out. With dp_epsilon, devices add noise to their counts, which is a step of DP-SGD to their ledgers; with
secure_aggregation the server sees only sums; with both, sums of what has noise already.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from shoal.core.algorithm import Algorithm, setting
from shoal.core.algorithm.settings import AUTO, checked
from shoal.core.data.histogram import EXCHANGES


@dataclass(frozen=True)
class Parameters:
    """Nothing has to be set."""

    of: str = setting(
        "", "An earlier run, each of whose clusters has statistics of its own; in Python, its result."
    )
    dp_epsilon: float = setting(
        0.0, "Noise on the devices: epsilon of the whole run, for each sample. 0: exact counts.", at_least=0
    )
    secure_aggregation: bool = setting(
        False,
        "Devices mask their counts, so that the server learns only sums of at least two thirds of a cohort "
        "of 8 to 128 devices.",
    )

    # What the exchanges of training ask for, which these are; see `shoal.core.algorithm.asks`.
    counts: ClassVar[bool] = True
    rounds: ClassVar[int] = EXCHANGES
    evaluate: ClassVar[bool] = False
    epochs: ClassVar[Any] = AUTO
    batch_size: ClassVar[Any] = AUTO
    aggregation: ClassVar[str] = "counted"
    dp_clip: ClassVar[float] = 1.0
    dp_delta: ClassVar[float] = 1e-6
    central_clip: ClassVar[float] = 1.0
    central_noise: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        checked("statistics", type(self), vars(self))

    @property
    def private(self) -> bool:
        """Whether devices add noise."""
        return bool(self.dp_epsilon)


ALGORITHM = Algorithm(
    name="statistics",
    summary="mean, deviation, quantiles and histogram of each feature; trains nothing",
    parameters=Parameters,
    server_module="shoal.core.algorithms.statistics.server",
    initial=lambda parameters: 0,
)
