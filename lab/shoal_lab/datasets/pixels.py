"""The colors of images."""

from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.simulation.images import unit

CHANNELS = {"red": 0, "green": 1, "blue": 2}


def color(images: npt.NDArray[Any], name: str) -> npt.NDArray[np.float32]:
    """Images as `unit` takes them -> float32 (n, 3, h, w); those of one channel get three equal ones first.

    `name`: "red", "green" or "blue" sets that channel to 1 at every pixel, so that the background takes the
    color and the figure shows in the other two (ANDA, `color_dataset`); "gray" leaves them as they are.
    """
    scaled = unit(images)
    colored = scaled if scaled.shape[1] == 3 else np.repeat(scaled, 3, axis=1)
    if name != "gray":
        colored[:, CHANNELS[name]] = 1
    return colored
