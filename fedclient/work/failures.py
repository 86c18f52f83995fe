"""What leaves the device of a failure: a code and a fixed text, and nothing of what went wrong there.

The message of an exception can hold values of real records: PyTorch prints the tensor that a check refused,
and a server can choose weights that make such a check fail. So the owner sees message and traceback, in the
log of `fedclient run` and in `fedclient status`, and the server gets the code and the text of that code, and
two shapes where a network does not fit: those of weights, which do not depend on records. Each
failure is noted with the ledger (`fedclient.store.failures`), since failing also tells something.
"""

import re
from collections.abc import Mapping
from traceback import format_exception

from shoal.core.errors import OtherShape, ShoalError
from shoal.core.exchange.link import Failure

TEXTS: Mapping[str, str] = {
    "bad-config": "a setting of the device is wrong",
    "bad-data": "the device's data cannot be used",
    "bad-ledger": "the device's privacy ledger is damaged, so nothing can be released",
    "bad-payload": "the task does not fit this device: its learner, its data or its version",
    "bug": "a bug on the device",
    "device-fault": "the device cannot do this task",
    "disk-full": "the device's disk is full",
    "failed": "the device could not do the task",
    "learner-failed": "the author's code failed",
    "no-algorithm": "the device lacks the package of its algorithm, which `fedserver algorithm show` names",
    "no-consent": "the device's owner has not consented to what this run asks for",
    "no-new-data": "the device's data are those that an earlier run of the series has trained on",
    "not-found": "something that the task needs is gone",
    "out-of-memory": "the device, or its GPU, does not have enough memory for this task",
    "over-budget": "the owner's privacy budget has too little left, or nothing: the owner raises it "
    "(privacy.epsilon) or waits (`fedclient ledger`), or a run asks for less, or for none (privacy=off)",
    "refused": "the device refuses this task",
    "storage": "the device's disk failed",
    "too-few-samples": "the device has too few samples for this guarantee: balanced takes at least 65, and "
    "strict 284; ask for a larger epsilon (privacy=explicit), or set privacy=off",
    "unprotected": "the device's owner lets nothing leave without a privacy guarantee; ask for dp_epsilon, "
    "and for privacy=balanced",
    "other-shape": "the network of this device has another shape than the run's model",
    "worker-died": "the device's training process ended",
}
"""What each code says to the server. Its owner learns the reason in `fedclient status`."""
OTHER = "failed"
MAX_DETAILS = 4000
"""Characters of a traceback that the owner is shown."""
SHAPE = r"(\[[0-9, ]{0,64}\])"
SHAPES = re.compile(rf".* is {SHAPE} in the run's model, and {SHAPE} on this device\b.*", re.DOTALL)
"""What `OtherShape` says; of that, the shapes leave, too."""


def failure_of(error: Exception) -> Failure:
    """What came of a task that raised this, for the owner."""
    if isinstance(error, ShoalError):
        return Failure(error.code, str(error), getattr(error, "details", "")[-MAX_DETAILS:])
    if isinstance(error, MemoryError):
        return Failure("out-of-memory", "the device does not have enough memory for this task")
    details = "".join(format_exception(error))[-MAX_DETAILS:]
    return Failure("bug", f"{type(error).__name__}: {error}"[:MAX_DETAILS], details)


def outgoing(failure: Failure) -> Failure:
    """A failure as it may leave the device.

    Example:
        >>> outgoing(Failure("learner-failed", "x is 30.7130", "Traceback ..."))
        Failure(code='learner-failed', message="the author's code failed", details='')
    """
    code = failure.code if failure.code in TEXTS else OTHER
    found = SHAPES.fullmatch(failure.message) if code == OtherShape.code else None
    shapes = f": {found[1]} in the run, and {found[2]} here" if found else ""
    return Failure(code, f"{TEXTS[code]}{shapes}")
