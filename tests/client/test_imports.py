"""What starting each part brings along: never scikit-learn, and PyTorch only where something is trained."""

import subprocess
import sys

import pytest

from tests.waiting import HANG

CENTRAL = ("sklearn", "scipy", "kneed")


def imported(*arguments: str) -> set[str]:
    """The modules that a Python with these arguments imports."""
    command = [sys.executable, "-X", "importtime", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    lines = [line for line in result.stderr.splitlines() if line.startswith("import time:")]
    assert lines, result.stderr
    return {line.rpartition("|")[2].strip() for line in lines}


@pytest.mark.parametrize(
    "arguments",
    [
        ("-m", "fedclient", "--help"),
        ("-m", "fedclient", "run", "--help"),
        ("-c", "import fedclient.__main__"),
        ("-m", "fedclient", "status", "--server", "127.0.0.1:1", "--insecure-loopback"),
    ],
    ids=" ".join,
)
def test_the_command_line_is_light(arguments: tuple[str, ...]) -> None:
    found = imported(*arguments)
    assert "shoal.shell.console" in found
    assert not found & {*CENTRAL, "torch", "fedclient.placing.placement", "shoal.core.inference.newcomer"}


def test_the_agent_is_light() -> None:
    found = imported("-c", "import fedclient.agent.service")
    assert {"grpc", "fedclient.agent.agent"} <= found
    assert not found & {*CENTRAL, "torch"}


def test_the_training_process_has_no_scikit_learn() -> None:
    """With every algorithm's device half, as a task would load it."""
    found = imported("-c", "import fedclient.work.worker, fedclient.work.runtime as w; w.halves()")
    assert "torch" in found
    assert not found & set(CENTRAL)
    assert not found & {"grpc", "fedclient.net.rpc"}


@pytest.mark.parametrize(
    "modules", ["fedclient.work.worker, fedclient.light.runtime", "fedclient.light.endpoint"]
)
def test_a_process_without_pytorch_loads_only_what_it_uses(modules: str) -> None:
    """Light devices have little memory, and these were 12 MB of each such process."""
    found = imported("-c", f"import {modules}")
    assert "fedclient.light.session" in found
    assert not found & {*CENTRAL, "torch", "grpc", "asyncio", "click", "cryptography", "importlib.metadata"}


def test_a_device_without_a_learner_is_placed_without_grpc_in_its_own_process() -> None:
    """It is in the process that asks, which has ended when models are tried."""
    found = imported("-c", "import fedclient.cli.place, fedclient.placing.service")
    assert "fedclient.placing.asking_process" in found
    assert not found & {*CENTRAL, "torch", "grpc", "cryptography", "onnxruntime"}


def test_the_process_that_answers_predictions_has_no_protobuf() -> None:
    assert "google.protobuf.message" not in imported("-c", "import fedclient.light.endpoint")


def test_gRPC_is_in_one_module() -> None:  # noqa: N802
    found = imported(
        "-c",
        "import fedclient.agent.agent, fedclient.placing.placement\n"
        "import fedclient.store.state, fedclient.cli.status",
    )
    assert "grpc" not in found
