"""What a device has that uses models: a network, data, random numbers, and the account of releases."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from shoal.core.data.arrays import network_input
from shoal.core.data.dataset import Dataset
from shoal.core.data.scale import NO_SCALE, levels
from shoal.core.data.version import Numbers, distinct, version
from shoal.core.data.views import Views
from shoal.core.errors import BadPayload, DeviceFault, near
from shoal.core.inference.network import Network
from shoal.core.privacy.accountant import Account, MaskedUpdate
from shoal.core.privacy.noise.chance import Entropy
from shoal.core.privacy.payment import Payment
from shoal.core.types import Array, Tensors

T = TypeVar("T")
R = TypeVar("R")

PARTS = ("train", "held_out", "test")
ALL = ("train", "held_out")
"""All parts that can be described, so a budget is about these. The test part never is."""


class InferenceContext:
    """network: into which models are loaded. views: the data. noise: only for the papers' mechanism. On a
    real device the operating system seeds it: anyone who knew the seed could subtract the noise. account:
    makes the releases with a guarantee, with noise of its own; without one, no release can have a guarantee.
    open_encoder: from the bytes of an ONNX file, which may be hostile, what embeds samples; None where there
    is no runtime.
    """

    def __init__(
        self, network: Network, views: Views, noise: np.random.Generator, account: Account | None = None
    ) -> None:
        self.network = network
        self.views = views
        self.noise = noise
        self.account = account
        self.open_encoder: Callable[[bytes], Callable[[Array], Array]] | None = None
        self._inputs: dict[str, Array] = {}
        self._version = ""
        self._distinct: dict[tuple[bool, tuple[str, ...]], Numbers] = {}

    def part(self, name: str) -> Dataset:
        """A part of the data: "train", "held_out", or "test" (the held-out part if there is no test part).

        Raises DeviceFault if that part is empty, BadPayload for another name.
        """
        if name not in PARTS:
            raise BadPayload(f"the data have no part {name!r}", near(name, list(PARTS)))
        if name == "test" and self.views.test is None:
            name = "held_out"
        data: Dataset = getattr(self.views, name)
        if len(data) == 0:
            raise DeviceFault(
                f"the {name} part of the data is empty",
                "give at least 2 labeled samples, and do not set held_out to 0",
            )
        return data

    @property
    def usable(self) -> tuple[str, ...]:
        """The parts of `ALL` that have samples."""
        return ALL if len(self.views.held_out) else ALL[:1]

    @property
    def regression(self) -> bool:
        """Whether the labels are numbers and not classes."""
        y = self.views.train.y
        return y is not None and y.dtype.kind == "f"

    def inputs(self, parts: Sequence[str]) -> Array:
        """(n, ...) float32 or int64: the samples of these parts, as the network takes them. Raises as
        `part`, and DataFault for unusable data."""
        for part in parts:
            if part not in self._inputs:
                self._inputs[part] = network_input(self.part(part).x)
        found = [self._inputs[part] for part in parts]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def labels(self, parts: Sequence[str], scale: Tensors = NO_SCALE) -> Array | None:
        """(n,) the classes of these parts, or in this scale the levels of numbers to predict. None where some
        have no labels."""
        found = [self.part(part).y for part in parts]
        known = [levels(y, scale) if self.regression else y for y in found if y is not None]
        return np.concatenate(known) if len(known) == len(found) else None

    def version(self) -> str:
        """A hash of the samples in `ALL`, without their classes."""
        if not self._version:
            self._version = version(getattr(self.views, part) for part in ALL)
        return self._version

    def distinct(self, parts: Sequence[str], labels: bool) -> Numbers:
        """Which samples of these parts are identical: see `shoal.core.data.version`."""
        key = (labels, tuple(parts))
        if key not in self._distinct:
            self._distinct[key] = distinct((getattr(self.views, part) for part in parts), labels)
        return self._distinct[key]

    # -- what leaves ------------------------------------------------------------------------------------

    def pay(self, payment: Payment, exact: Callable[[], T], noised: Callable[[T, Entropy], R]) -> R:
        """Pay for an answer with a guarantee: see `Account.pay`. Raises DeviceFault without an account."""
        if self.account is None:
            raise DeviceFault(
                "no privacy account is kept here, so nothing can be released with a guarantee",
                "give the device context an account",
            )
        return self.account.pay(payment, exact, noised)

    def unprotected(self, what: str) -> None:
        """Note that this leaves without a guarantee. Raises Unprotected where the owner does not allow it."""
        if self.account is not None:
            self.account.unprotected(what, self.version())

    def summed(self, update: MaskedUpdate) -> None:
        """Note that an update leaves under masks: see `Account.summed`."""
        if self.account is not None:
            self.account.summed(update)
