"""What a server loads before it has a run, and what its page loads."""

import subprocess
import sys

import pytest


def test_a_server_without_a_run_that_clusters_loads_no_scipy() -> None:
    """It would be a third of its memory."""
    program = (
        "import sys, fedserver.daemon, fedserver.rpc.server, shoal.core.algorithms.fedavg.server;"
        "print(sorted(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "'shoal.core.server_kit.clustering.cluster'" in found.stdout
    assert "'scipy'" not in found.stdout


def test_the_page_loads_no_cryptography() -> None:
    """It reads what the operators' socket says, and certificates are not among that."""
    pytest.importorskip("starlette", reason="the page's packages are not installed")
    program = "import sys, fedserver.page.app, fedserver.page.serve; print(sorted(sys.modules))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "'starlette'" in found.stdout
    assert "'cryptography'" not in found.stdout
