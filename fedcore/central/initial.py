"""Several initial models where the server has one, and no way to make another: it has no PyTorch."""

from fedcore.seeds import generator
from fedcore.types import Array, ModelKey, Tensors


def several(model: Tensors, names: tuple[ModelKey, ...]) -> dict[ModelKey, Tensors]:
    """The model as it is, and as many others of the same distribution, the same at every call.

    The values within each tensor of floats are put into another order. Initial weights are drawn alike and
    independently within a tensor, so any order of them is as likely; constants, as of a batch norm, stay.
    """
    return {name: model if number == 0 else _shuffled(model, number) for number, name in enumerate(names)}


def _shuffled(model: Tensors, number: int) -> dict[str, Array]:
    found = {}
    for name, array in model.items():
        if array.dtype.kind == "f":
            order = generator(number, "initial", name).permutation(array.size)
            array = array.reshape(-1)[order].reshape(array.shape)
        found[name] = array
    return found
