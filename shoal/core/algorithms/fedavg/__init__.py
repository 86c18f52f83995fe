"""McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
Algorithm 1.

There is one model for all devices: the mean of the models that they trained, weighted by their samples.

The preset `paper` is how the FLUX paper's tables ran it: the momentum is reset at each epoch, the round with
the lowest held-out loss is reported, and updates are not bounded. The default reports the last round and
clips updates that are far longer than usual, so that a hostile device cannot take over the model. The preset
`private` trains by DP-SGD, with the parameters that suit it.
"""

from dataclasses import dataclass
from typing import Literal

from shoal.core.algorithm import NOISED, PRIVATE, Algorithm, NoisedParameters, setting
from shoal.core.errors import ConfigError


@dataclass(frozen=True)
class Parameters(NoisedParameters):
    """The parameters of training, of the server's noise, and of which model is the result."""

    select: Literal["last", "lowest_loss"] = setting(
        "last",
        "Which round's model is the result. lowest_loss measures the held-out loss after every round, which "
        "costs one small exchange per round and no extra download.",
    )

    def check(self) -> None:
        super().check()
        if self.private and self.select != "last" and not self.dp_open_figures:
            raise ConfigError(
                "a model cannot be chosen by losses with DP-SGD, because losses have no guarantee",
                "set select=last, or dp_open_figures=true to run it all the same",
            )
        if self.aggregation == NOISED and self.select != "last":
            raise ConfigError(
                "a noised model cannot be chosen by losses, because those have no noise", "set select=last"
            )


ALGORITHM = Algorithm(
    name="fedavg",
    summary="one global model (McMahan et al. 2017)",
    parameters=Parameters,
    server_module="shoal.core.algorithms.fedavg.server",
    presets={
        # As in the FLUX paper's tables: reset momentum at each epoch, and report the round of lowest loss.
        "paper": {"select": "lowest_loss", "restart_momentum": True, "aggregation": "mean"},
        "private": PRIVATE,
    },
)
