import numpy as np
import pytest
import torch

from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext, choose_device
from shoal.core.device_kit.learner import initial_weights, tensors_of
from shoal.core.errors import BadPayload, ConfigError, DeviceFault
from shoal.core.exchange.messages import Build, Evaluated, Message
from shoal.core.types import Tensors
from shoal.simulation.simulated import Simulated

from .conftest import DEVICES, blobs, context_of, small


@pytest.mark.parametrize("device", DEVICES)
def test_data_and_network_are_where_it_computes_and_are_made_once(device: str) -> None:
    context = context_of(device=device)
    samples = context.samples("train")
    assert samples.x.device.type == device
    assert samples.labels.device.type == device
    assert next(context.model.parameters()).device.type == device
    assert context.samples("train") is samples
    weights = initial_weights(context.learner, 3)
    assert context.load(weights) is context.model
    assert all(np.array_equal(array, weights[name]) for name, array in tensors_of(context.model).items())


def test_the_bench_of_a_task_shares_all_but_the_seed() -> None:
    context = context_of(seed=1)
    task = context.for_task(seed=2)
    assert (context.seed, task.seed) == (1, 2)
    assert task.model is context.model
    assert task.noise is context.noise
    assert task.samples("train") is context.samples("train")


def test_what_a_task_leaves_is_not_in_memory_before_the_next_one() -> None:
    task = context_of().for_task(seed=2)
    assert task.memory is None
    task.remember({"omega": np.array([0.25, 0.75])})
    task.remember({"omega": np.array([0.5, 0.5])})
    assert task.memory is None
    assert task.remembered is not None
    following = task.for_task(seed=3, memory=task.remembered)
    assert following.memory is not None
    assert following.memory["omega"].tolist() == [0.5, 0.5]
    assert following.remembered is None


def test_a_few_models_and_a_little_for_each_sample_can_be_remembered() -> None:
    """The network has 4 x 5 + 5 + 5 x 3 + 3 = 43 float32; 40 of 50 samples are to train on."""
    context = context_of()
    most = 4 * 4 * 43 + 1024 * 40 + 65536  # the last for keys of secure aggregation
    context.remember({"all": np.zeros(most, np.uint8)})
    with pytest.raises(DeviceFault, match=f"{most + 1} bytes to remember; at most {most} are allowed"):
        context.remember({"all": np.zeros(most + 1, np.uint8)})


def test_a_simulated_device_remembers_once_there_is_an_answer() -> None:
    class Counting:
        def perform(self, message: Message, context: DeviceContext) -> Message:
            tasks = 0 if context.memory is None else int(context.memory["tasks"])
            context.remember({"tasks": np.array(tasks + 1)})
            if context.seed == 9:
                raise DeviceFault("it failed after it had remembered")
            return Evaluated(0.5, float(tasks), 1)

    kept: list[Tensors] = []

    def keep(tensors: Tensors) -> Tensors:
        kept.append(tensors)
        return tensors

    memories: dict[str, Tensors] = {}
    devices = [Simulated(Counting(), context_of(), name, memories, keep) for name in ("a", "b")]
    seen = [devices[0](Build(), seed=1), devices[0](Build(), seed=1), devices[1](Build(), seed=1)]
    with pytest.raises(DeviceFault):
        devices[0](Build(), seed=9)
    seen.append(devices[0](Build(), seed=1))
    assert [each.loss for each in seen if isinstance(each, Evaluated)] == [0.0, 1.0, 0.0, 2.0]
    assert len(kept) == 4


def test_benches_may_take_turns_with_one_network() -> None:
    network = small().module(0)
    contexts = [
        DeviceContext(small(), Views.of(blobs(5)), "cpu", 0, np.random.default_rng(0), network)
        for _ in range(2)
    ]
    assert contexts[0].model is contexts[1].model


def test_parts_of_the_data() -> None:
    views = Views.of(blobs(50), test=blobs(7))
    context = DeviceContext(small(), views, "cpu", 0, np.random.default_rng(0))
    assert [len(context.samples(part)) for part in ("train", "held_out", "test")] == [40, 10, 7]


def test_without_a_test_part_the_held_out_one_stands_for_it() -> None:
    context = context_of()
    assert context.samples("test") is context.samples("held_out")


def test_an_empty_part_is_the_owners_to_hint() -> None:
    context = context_of(data=Dataset(blobs(5).x))
    with pytest.raises(DeviceFault, match="held_out part of the data is empty"):
        context.samples("held_out")


def test_an_unknown_part_gets_the_nearest_one() -> None:
    with pytest.raises(BadPayload, match='did you mean "held_out"'):
        context_of().samples("heldout")


def test_an_unknown_device_gets_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match='did you mean "cuda"'):
        choose_device("cuda:0")


def test_auto_takes_the_gpu_when_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [choose_device(name).type for name in ("auto", "cpu", "cuda")] == ["cuda", "cpu", "cuda"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert [choose_device(name).type for name in ("auto", "cpu")] == ["cpu", "cpu"]
    with pytest.raises(ConfigError, match="no CUDA GPU"):
        choose_device("cuda")
