"""What a server loads before it has a run."""

import subprocess
import sys


def test_a_server_without_a_run_that_clusters_loads_no_scipy() -> None:
    """It would be a third of its memory."""
    program = (
        "import sys, fedserver.daemon, fedserver.rpc.server, shoal.core.algorithms.fedavg.server;"
        "print(sorted(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "'shoal.core.server_kit.clustering.cluster'" in found.stdout
    assert "'scipy'" not in found.stdout
