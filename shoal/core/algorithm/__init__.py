"""What an algorithm is. Each one lives in a folder of `shoal/core/algorithms/`, in another distribution under
the entry point group `shoal.algorithms`, or in a notebook cell (`shoal.algorithm`). It is discovered there:
there is no list to edit.

    algorithms/<name>/__init__.py   ALGORITHM = Algorithm(...), its parameters and presets
                      server.py     the server half: start, plan, reduce, place
                      device.py     the device half: perform
                      messages.py   its own messages, where the standard ones do not suffice

A half that is given by its module's name is loaded only where it runs: a device never imports scikit-learn,
and the server never imports torch.
"""

from shoal.core.algorithm.basis import Basis, basis_of, begun_with
from shoal.core.algorithm.card import Algorithm
from shoal.core.algorithm.discovery import Rejected, discover, find, register, rejected
from shoal.core.algorithm.halves import (
    APART,
    LASTING,
    DeviceHalf,
    Plan,
    Report,
    ServerHalf,
    State,
    densities,
    independent,
    measurement,
    without,
)
from shoal.core.algorithm.parameters import (
    MAX_ROUNDS,
    NOISED,
    OWN_MODELS,
    PRIVATE,
    VOTE,
    CommonParameters,
    DescriptorParameters,
    NoisedParameters,
    PlacingParameters,
    RoundParameters,
    Rule,
    SgdParameters,
    TrainingParameters,
    ends_by_itself,
    most_rounds,
)
from shoal.core.algorithm.plugin import algorithm
from shoal.core.algorithm.settings import Setting, Written, setting

__all__ = [
    "APART",
    "LASTING",
    "MAX_ROUNDS",
    "NOISED",
    "OWN_MODELS",
    "PRIVATE",
    "VOTE",
    "Algorithm",
    "Basis",
    "CommonParameters",
    "DescriptorParameters",
    "DeviceHalf",
    "NoisedParameters",
    "PlacingParameters",
    "Plan",
    "Rejected",
    "Report",
    "RoundParameters",
    "Rule",
    "ServerHalf",
    "Setting",
    "SgdParameters",
    "State",
    "TrainingParameters",
    "Written",
    "algorithm",
    "basis_of",
    "begun_with",
    "densities",
    "discover",
    "ends_by_itself",
    "find",
    "independent",
    "measurement",
    "most_rounds",
    "register",
    "rejected",
    "setting",
    "without",
]
