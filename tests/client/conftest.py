"""A small device: a learner of the author's, a little data, a folder."""

from pathlib import Path

import numpy as np
import pytest

from fedclient.config import DataConfig, LearnerConfig, WorkConfig
from fedclient.identity.keyring import Keyring
from fedclient.store.blobs import BlobStore
from tests.client.federation import Federation
from tests.client.memory_server import MemoryServer
from tests.client.visits import Device, train

LEARNER = """
import os, signal, sys
import torch
from torch import nn

print("loading", flush=True)          # on the real standard output: it must not reach the pipe
os.write(1, b"raw bytes as well\\n")

def build():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

latent = "0"

def train(model, batches, settings):
    print("training")
    if settings.epochs == 13:
        def deep(n):
            return deep(n - 1) if n else 1 / 0
        deep(900)
    if settings.epochs == 9:
        os.kill(os.getpid(), signal.SIGKILL)
    if settings.epochs == 7:
        sys.exit(5)
    if settings.epochs == 6:
        os._exit(6)
    if settings.epochs == 99:
        open(os.environ["SHOAL_TEST_MARK"], "w").write(str(os.getpid()))
        import time
        time.sleep(600)
    for _ in range(settings.epochs):
        for x, y in batches:
            model.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            with torch.no_grad():
                for weight in model.parameters():
                    weight -= settings.learning_rate * weight.grad
    return loss.item()
"""


@pytest.fixture
def work(tmp_path: Path) -> WorkConfig:
    """The settings of a training process: the learner above and 50 labeled samples of 3 classes."""
    chance = np.random.default_rng(0)
    y = chance.integers(0, 3, 50)
    np.savez(tmp_path / "train.npz", x=(chance.normal(size=(50, 4)) + y[:, None]).astype(np.float32), y=y)
    (tmp_path / "learner.py").write_text(LEARNER)
    return WorkConfig(
        tmp_path / "blobs",
        tmp_path / "privacy",
        LearnerConfig(file=tmp_path / "learner.py"),
        DataConfig(npz=tmp_path / "train.npz"),
    )


@pytest.fixture
def store(work: WorkConfig) -> BlobStore:
    return BlobStore(work.blobs)


@pytest.fixture
def federation() -> Federation:
    return Federation()


@pytest.fixture
def keyring(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path / "identity")


@pytest.fixture
def server() -> MemoryServer:
    server = MemoryServer([])
    server.tasks += [train(server, 1), train(server, 2, 3.0)]
    return server


@pytest.fixture
def device(tmp_path: Path, server: MemoryServer) -> Device:
    return Device(tmp_path, server)
