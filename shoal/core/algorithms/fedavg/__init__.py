"""McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
Algorithm 1.

One model for all: the mean of what the devices trained, weighted by their samples.

The preset `paper` is how the FLUX paper's tables ran it: momentum starts again at each epoch, the round with
the lowest held-out loss is reported, and updates are not bounded. The default reports the last round and cuts
updates that are far longer than usual, so that a hostile device cannot carry the model away.
"""

from dataclasses import dataclass
from typing import Literal

from shoal.core.algorithm import NOISED, Algorithm, NoisedParameters, setting
from shoal.core.errors import ConfigError


@dataclass(frozen=True)
class Parameters(NoisedParameters):
    """Training's, noise of the server's, and which model is the result."""

    select: Literal["last", "lowest_loss"] = setting(
        "last",
        "Which round's model is the result; lowest_loss measures the held-out loss after every round, which "
        "costs one small exchange a round and no extra download.",
    )

    def check(self) -> None:
        super().check()
        if self.aggregation == NOISED and self.select != "last":
            raise ConfigError(
                "a noised model cannot be chosen by losses, which have no noise", "set select=last"
            )


ALGORITHM = Algorithm(
    name="fedavg",
    summary="one global model (McMahan et al. 2017)",
    parameters=Parameters,
    server_module="shoal.core.algorithms.fedavg.server",
    presets={
        # How the FLUX paper's tables ran it: fresh momentum each epoch, the round of lowest loss reported.
        "paper": {"select": "lowest_loss", "restart_momentum": True, "aggregation": "mean"},
    },
)
