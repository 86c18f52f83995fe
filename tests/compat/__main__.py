"""Record `stopped_run.tar.gz`: a server and devices of the reference, killed in the middle of a round."""

import gzip
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from fedserver.rpc.client import OperatorClient
from fedserver.store.backup import PASSING
from shoal.shell import crash
from tests.compat import reference
from tests.compat.test_stopped_run import RECORDED
from tests.server.processes import daemon
from tests.server.servers import DEVICES, spec
from tests.server.toys import MODEL
from tests.waiting import HANG

HALFWAY = "device.uploaded:2"
"""The result of the first device is with the server, and in its outbox, and not reported."""


def record(folder: Path, variables: dict[str, str]) -> None:
    """Leave in `folder` what the processes have left when they were killed."""
    policy = replace(spec().policy, straggler_factor=0.0)
    with (
        daemon(folder / "server", environment=variables) as server,
        OperatorClient(server.state) as operator,
        ExitStack() as stack,
    ):
        operator.start_run(spec(policy=policy), MODEL)
        devices = []
        for number in range(DEVICES):
            line = ["-m", "tests.crash.device", server.address, str(folder / f"d{number}"), str(number)]
            point = {crash.VARIABLE: HALFWAY} if number == 0 else {}
            process = subprocess.Popen([sys.executable, *line], env={**os.environ, **variables, **point})
            stack.callback(process.wait)
            stack.callback(process.kill)
            devices.append(process)
        assert devices[0].wait(HANG) == -signal.SIGKILL
        until = time.monotonic() + HANG
        while operator.show("toy").summary.waiting_for != f"{DEVICES - 1} of {DEVICES} reports are in":
            assert time.monotonic() < until, operator.show("toy")
            time.sleep(0.1)
        server.stop(signal.SIGKILL)
    assert any((folder / "d0" / "outbox").iterdir()), "a result waits there"


def packed(folder: Path, target: Path) -> None:
    """The lasting files of the folder, with no trace of who has recorded them."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if not (entry.isfile() or entry.isdir()) or Path(entry.name).name in PASSING - {"blobs", "spool"}:
            return None
        entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = now, 0, 0, "", ""
        return entry

    now = int(time.time())

    with gzip.GzipFile(target, "wb", 9, mtime=0) as file, tarfile.open(fileobj=file, mode="w") as archive:
        for name in ("server", *(f"d{number}" for number in range(DEVICES))):
            archive.add(folder / name, name, filter=plain)


def main() -> None:
    if reason := reference.lacking():
        raise SystemExit(reason)
    with tempfile.TemporaryDirectory() as scratch:
        installed, folder = Path(scratch, "reference"), Path(scratch, "run")
        installed.mkdir()
        folder.mkdir()
        record(folder, reference.install(installed))
        packed(folder, RECORDED)
    print(f"{RECORDED}: {RECORDED.stat().st_size} bytes, of {reference.COMMIT}")


if __name__ == "__main__":
    main()
