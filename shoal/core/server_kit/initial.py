"""Several initial models where fewer came: an operator gave one, say, and a server has no PyTorch."""

from collections.abc import Sequence

from shoal.core.seeds import generator
from shoal.core.types import Array, ModelKey, Tensors


def several(models: Sequence[Tensors], names: Sequence[ModelKey]) -> dict[ModelKey, Tensors]:
    """The models as they are, at least one, and as many others of the same distribution as `names` takes, the
    same at every call.

    The values within each tensor of floats are put into another order. Initial weights are drawn alike and
    independently within a tensor, so any order of them is as likely; constants, as of a batch norm, stay.
    """
    return {
        name: models[number] if number < len(models) else _shuffled(models[0], number)
        for number, name in enumerate(names)
    }


def _shuffled(model: Tensors, number: int) -> dict[str, Array]:
    found = {}
    for name, array in model.items():
        if array.dtype.kind == "f":
            order = generator(number, "initial", name).permutation(array.size)
            array = array.reshape(-1)[order].reshape(array.shape)
        found[name] = array
    return found
