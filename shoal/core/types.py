"""The few type names that every layer shares."""

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

DeviceId = str
"""The identity of a device: stable over restarts; never read from the body of a request."""

RunId = str
"""The name of one training job."""

ModelKey = str
"""The name of one of a run's models: "global", or a cluster's name such as "c0"."""

Array = npt.NDArray[Any]

Tensors = Mapping[str, Array]
"""Named arrays in the model's own order. They may be views of a mapped file: never write to them."""

Scalar = bool | int | float | str

Bytes = bytes | memoryview
"""Bytes that may be a part of others."""
