"""What the version before has left on the disk, in the middle of a round: this version goes on with it."""

import tarfile
from contextlib import ExitStack
from pathlib import Path

from fedserver.rpc.client import OperatorClient
from tests.crash import lab
from tests.crash.test_processes import check, device
from tests.server.processes import daemon, restored
from tests.server.servers import DEVICES

RECORDED = Path(__file__).with_name("stopped_run.tar.gz")
"""The folders of a server and of its devices: two reports of three are in, the third is in an outbox."""

AT_THAT_TIME = """
import time
since = time.monotonic()
time.time = lambda: {then} + time.monotonic() - since
from fedserver.__main__ import main
main()
"""
"""`fedserver`, by whose clock it was killed just now: a deadline passes while a server is down, too."""


def test_this_version_finishes_the_round_and_the_run_with_the_same_bits(tmp_path: Path) -> None:
    with tarfile.open(RECORDED) as archive:
        archive.extractall(tmp_path, filter="data")
        then = archive.getmember("server").mtime
    state = tmp_path / "server"
    program = ("-c", AT_THAT_TIME.format(then=then))
    with daemon(state, program) as server, OperatorClient(state) as operator, ExitStack() as stack:
        found = restored(operator, "toy").summary
        assert (found.stage, found.waiting_for) == ("open", f"{DEVICES - 1} of {DEVICES} reports are in")
        devices = [stack.enter_context(device(server.address, tmp_path, number)) for number in range(DEVICES)]
        check(operator, lab.expected())
        assert [each.wait() for each in devices] == [0] * DEVICES
