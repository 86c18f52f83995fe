"""What this machine permits: namespaces of our own, file systems of a limited size, failing system calls.

Where they are permitted, the harness starts itself again inside namespaces of its own for mounts, network and
processes: so its load stays in there, and whatever it leaves behind ends with it.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

INSIDE = "SHOAL_CHAOS_INSIDE"
OWN = ("--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""For numerics on a machine that is busy on purpose: more threads would wait for each other."""


def enter() -> None:
    """Go on inside namespaces of our own; returns once we are there, or where they are not permitted."""
    if INSIDE in os.environ:
        if os.environ[INSIDE] == "namespaces":
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        return
    command = [sys.executable, "-m", "tests.chaos", *sys.argv[1:]]
    options = [] if os.geteuid() == 0 else ["--map-root-user"]
    unshare = ["unshare", *options, *OWN]
    possible = all(map(shutil.which, ("unshare", "ip"))) and _works(
        [*unshare, "ip", "link", "set", "lo", "up"]
    )
    environment = {**os.environ, **ONE_THREAD, INSIDE: "namespaces" if possible else "plain"}
    line = [*unshare, *command] if possible else command
    os.execvpe(line[0], line, environment)


def no_tmpfs() -> str:
    """Why no file system of a limited size is available; "" when one is."""
    if os.environ.get(INSIDE) != "namespaces":
        return "no mount namespace of our own is permitted"
    return ""


def no_strace() -> str:
    """Why no system call can be made to fail; "" when they can."""
    if shutil.which("strace") is None:
        return "there is no strace"
    if not _works([*failing("fsync", "EIO", 1, Path(os.devnull)), "true"]):
        return "strace may not trace here"
    return ""


def failing(call: str, error: str, number: int, log: Path) -> tuple[str, ...]:
    """What to put in front of a command so that this system call fails, once in each of its threads.

    log: where it writes down each call; those that failed so are INJECTED.
    """
    inject = f"inject={call}:error={error}:when={number}"
    return ("strace", "-f", "-qq", "--seccomp-bpf", "-o", str(log), "-e", f"trace={call}", "-e", inject)


@contextmanager
def tmpfs(folder: Path, size: int) -> Iterator[None]:
    """A file system of `size` bytes at `folder`."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def _works(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
