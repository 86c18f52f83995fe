"""The few names that every floor shares."""

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

DeviceId = str
"""Who a device is: stable over restarts; never read from the body of a request."""

RunId = str
"""One training job."""

ModelKey = str
"""One of a run's models: "global", or a cluster's name such as "c0"."""

Array = npt.NDArray[Any]

Tensors = Mapping[str, Array]
"""Named arrays in the model's own order. May be views of a mapped file: never write to them."""

Scalar = bool | int | float | str
