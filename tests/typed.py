"""`fedclient` and `fedserver` for a shell or a program that starts them by name: each is forked, as
`tests/programs.py` has it. The command that the shell started passes on its files, signals and exit code."""

import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.programs import Program

COMMAND = """#!{python} -IS
import json, os, signal, socket, sys

name, *words = sys.argv
line = words[1:] if words[:1] == ["-m"] else [os.path.basename(name), *words]
link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
link.connect({address!r})
socket.send_fds(link, [json.dumps([line, os.getcwd(), dict(os.environ)]).encode()], [0, 1, 2])
number = int(link.recv(64))

def pass_on(signal, frame):
    try:
        os.kill(number, signal)
    except ProcessLookupError:
        pass

for each in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(each, pass_on)
code = int(link.recv(64))
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""
PYTHON = "python-m"
"""The command that is `python`, of which only `-m MODULE` is asked."""


@contextmanager
def commands() -> Iterator[Path]:
    """A folder for the PATH: `fedclient`, `fedserver` and `PYTHON`, which work until the end of the block."""
    with (
        TemporaryDirectory(prefix="shoal-") as name,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door,
    ):
        folder = Path(name)
        door.bind(str(folder / "door"))
        door.listen()
        for command in ("fedclient", "fedserver", PYTHON):
            path = folder / command
            path.write_text(COMMAND.format(python=sys.executable, address=str(folder / "door")))
            path.chmod(0o755)
        threading.Thread(target=_serve, args=(door,), daemon=True).start()
        yield folder
        door.shutdown(socket.SHUT_RDWR)


def _serve(door: socket.socket) -> None:
    while True:
        try:
            link, _ = door.accept()
        except OSError:  # the end of the block
            return
        threading.Thread(target=_run, args=(link,), daemon=True).start()


def _run(link: socket.socket) -> None:
    with link:
        about, files, _, _ = socket.recv_fds(link, 1 << 20, 3)
        line, folder, environment = json.loads(about)
        program = Program(line, files, folder, environment)
        for each in files:
            os.close(each)
        link.send(str(program.pid).encode())
        if program.sentinel not in wait([program.sentinel, link]):  # the command was killed
            program.kill()
        else:
            link.send(str(program.wait()).encode())
