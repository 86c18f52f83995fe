"""The device context: what a device half is given. Learner, data, a network to work in, and random numbers.

A context lasts as long as its data: they are converted once, and one network is used over and over. Therefore
only one task runs at a time, and a task copies out what it keeps of the network (`tensors_of`).

    def perform(message, context):
        samples = context.samples("train")
        model = context.load(message.model)                      # the network, with these weights
        loss = train(context.learner, model, samples, message.settings, context.seed)
        return Trained(tensors_of(model), len(samples), loss)

What a device half needs again in a later task of the same run, such as a personal model, it passes to
`remember` and finds in `memory`. That never leaves the device. It counts from the moment at which the task's
result does: a task that is repeated finds what it found the first time. It can be lost with the disk, and an
operator can roll the models back without it; so a device half checks that it fits, and can start without it.
"""

import copy
from secrets import token_bytes

import numpy as np
import torch
from torch import nn

from shoal.core.data.dataset import Dataset
from shoal.core.data.scale import same, scale_of
from shoal.core.data.views import Views
from shoal.core.device_kit.learner import Learner, carry, load_weights
from shoal.core.device_kit.network import TorchNetwork
from shoal.core.device_kit.samples import Samples, convert
from shoal.core.device_kit.scaling import in_scale
from shoal.core.errors import BadPayload, ConfigError, DeviceFault, near
from shoal.core.exchange.messages import Message
from shoal.core.exchange.payload import tensors_of
from shoal.core.exchange.tensors import nbytes
from shoal.core.inference.context import InferenceContext
from shoal.core.privacy.accountant import Account
from shoal.core.privacy.secure.cohort import Signer, Unsigned
from shoal.core.types import Tensors

DEVICES = ("auto", "cpu", "cuda")
MODELS, PER_SAMPLE, SPARE = 4, 1 << 10, 1 << 16
"""The limit of what is remembered of a run: this many models, this many bytes per training sample, and this
many besides, such as the keys of secure aggregation."""


class DeviceContext(InferenceContext):
    """learner, views: the author's code and the data. device: where to compute.

    seed: of this task's shuffling, dropout and the like.
    noise: only for the papers' mechanism. On a real device the operating system seeds it: anyone who knew the
    seed could subtract the noise.
    account: makes the releases with a guarantee, with noise of its own.
    memory: what the last task of this run remembered; None at first. Views of a file, never written to.
    remembered: what this task wants remembered; None: no change.
    signer: signs and checks what devices announce to each other (`shoal.core.privacy.secure`). secret:
    entropy for keys, the operating system's.
    """

    secret = staticmethod(token_bytes)

    def __init__(
        self,
        learner: Learner,
        views: Views,
        device: str,
        seed: int,
        noise: np.random.Generator,
        model: nn.Module | None = None,
        account: Account | None = None,
    ) -> None:
        """device: "auto" (a CUDA GPU if there is one), "cpu" or "cuda".

        model: a network of this learner that several contexts share in turn, as in a simulation of many
        devices; by default the context builds its own. account: without one, no release can have a guarantee.

        Raises ConfigError for a missing device, LearnerFault if the learner cannot build.
        """
        self.learner = learner
        self.signer: Signer = Unsigned()
        self.device = choose_device(device)
        self.seed = seed
        self.model = (learner.module(seed=0) if model is None else model).to(self.device)
        super().__init__(TorchNetwork(learner, self.model, self.device), views, noise, account)
        self.memory: Tensors | None = None
        self.remembered: Tensors | None = None
        self._scale: Tensors = {}
        self._samples: dict[str, tuple[Tensors, Samples]] = {}

    def for_task(
        self, seed: int, memory: Tensors | None = None, message: Message | None = None
    ) -> "DeviceContext":
        """A context for one task, with this seed and memory; data and network are shared. message: the task,
        whose models say in which scale the samples are."""
        context = copy.copy(self)
        context.seed, context.memory, context.remembered = seed, memory, None
        context.in_scale_of(message)
        return context

    def within(self, model: nn.Module) -> "DeviceContext":
        """The same context at work in another network of its learner, where several are at work at once."""
        context = copy.copy(self)
        context.model, context.network = model, TorchNetwork(self.learner, model, self.device)
        return context

    def in_scale_of(self, message: Message | None) -> None:
        """Give samples in the scale that the message's models carry, from now on."""
        sets = [] if message is None else [tensors for _, tensors in tensors_of(message)]
        self.in_scale(next(filter(scale_of, sets), {}))

    def in_scale(self, model: Tensors) -> None:
        """Give samples in the scale that this model carries, from now on: those of a run's clusters may have
        others."""
        self._scale = scale_of(model)
        carry(self.model, self._scale)

    def remember(self, tensors: Tensors) -> None:
        """Put these into `memory` from the next task of this run on, instead of what is there.

        The last call of a task counts. Raises DeviceFault for more than `MODELS` models of this learner,
        `PER_SAMPLE` bytes per training sample and `SPARE` bytes.
        """
        size, most = (
            nbytes(tensors),
            MODELS * self._model_bytes() + PER_SAMPLE * len(self.views.train) + SPARE,
        )
        if size > most:
            raise DeviceFault(
                f"{size} bytes to remember; at most {most} are allowed", "remember less from task to task"
            )
        self.remembered = tensors

    def _model_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.model.state_dict().values())

    def samples(self, part: str) -> Samples:
        """A part of the data, in the scale of the task's models, if they have one: "train", "held_out", or
        "test" (the held-out part if there is no test part).

        Raises DeviceFault if that part is empty, BadPayload for another name or a scale of other features,
        DataFault for unusable data.
        """
        return self._samples_in(part, self._scale)

    def samples_as_they_are(self, part: str) -> Samples:
        """The same in the data's own units, for what no model of the run computes. Raises as `samples`."""
        return self._samples_in(part, {})

    def _samples_in(self, part: str, scale: Tensors) -> Samples:
        """They are kept in one scale only, the last one: memory has no room for more."""
        if part == "test" and self.views.test is None:
            part = "held_out"
        known = self._samples.get(part)
        if known is None or not same(known[0], scale):
            data = Dataset(self.inputs([part]), self.part(part).y)  # of which it shares the memory
            found = in_scale(convert(data, self.device), scale)
            known = self._samples[part] = scale, found
        return known[1]

    def load(self, weights: Tensors) -> nn.Module:
        """The context's network with these weights, until the next call. Raises BadPayload if they do not
        fit, or take inputs in another scale than the task's.
        """
        if not same(scale_of(weights), self._scale):
            raise BadPayload("two models of one task take their inputs in different scales")
        load_weights(self.model, weights)
        return self.model


def choose_device(name: str) -> torch.device:
    """Where to compute. Raises ConfigError if that device is missing."""
    if name not in DEVICES:
        raise ConfigError(f"there is no device {name!r}", near(name, list(DEVICES)))
    found = torch.cuda.is_available()
    if name == "cuda" and not found:
        raise ConfigError("device is cuda, but PyTorch finds no CUDA GPU", "use auto or cpu")
    return torch.device("cuda" if found and name != "cpu" else "cpu")
