"""The models that clusters start with."""

from collections.abc import Sequence

from shoal.core.data.scale import scale_of, with_scale, without_scale
from shoal.core.data.seeds import generator
from shoal.core.exchange.tensors import digest
from shoal.core.types import ModelKey, Tensors


def cluster_names(count: int) -> tuple[ModelKey, ...]:
    """The names of this many clusters: c0, c1, ..."""
    return tuple(f"c{number}" for number in range(count))


def begun(count: int, models: Sequence[Tensors]) -> dict[ModelKey, Tensors]:
    """This many clusters, each with an initial model; if there are fewer models, they repeat from the
    first. For algorithms in which equal models part by themselves; for others, see `several`."""
    return {name: models[number % len(models)] for number, name in enumerate(cluster_names(count))}


def several(models: Sequence[Tensors], names: Sequence[ModelKey]) -> dict[ModelKey, Tensors]:
    """A model for each of `names`: the given ones, at least one, and then others of the same distribution,
    which are the same at every call. Given models that are equal count as one: those that start from the same
    weights get the same losses, so that no device could ever tell them apart.

    An additional model has the values of the first, permuted within each tensor of floats. Initial weights
    are independent and identically distributed within a tensor, so any order of them is equally likely;
    constant tensors, for example those of a batch norm, do not change, nor does the scale of the inputs.
    """
    models = list({digest(model): model for model in models}.values())
    return {
        name: models[number] if number < len(models) else _shuffled(models[0], number)
        for number, name in enumerate(names)
    }


def _shuffled(model: Tensors, number: int) -> Tensors:
    found = {}
    for name, array in without_scale(model).items():
        if array.dtype.kind == "f":
            order = generator(number, "initial", name).permutation(array.size)
            array = array.reshape(-1)[order].reshape(array.shape)
        found[name] = array
    return with_scale(found, scale_of(model))
