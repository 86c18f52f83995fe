"""Files of weights, on a disk that takes no more."""

import resource
from pathlib import Path

import numpy as np
import pytest

from shoal.core.errors import StorageFault
from shoal.shell.weights import load, save


def test_what_does_not_fit_is_a_fault_of_the_disk_and_the_old_file_stays(tmp_path: Path) -> None:
    path, most = tmp_path / "model.safetensors", resource.getrlimit(resource.RLIMIT_FSIZE)
    save({"weight": np.ones(2, np.float32)}, path, {})
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, most[1]))
    try:
        with pytest.raises(StorageFault, match=r"model.safetensors: File too large"):
            save({"weight": np.zeros(4096, np.float32)}, path, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert load(path)["weight"].tolist() == [1.0, 1.0]
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
