"""A device on a bare Debian: installed, joined, updated in a run, and gone. Not a part of `make test`.

    python -m tests.deploy.bare_debian deb dist/fedclient_0.2.0_amd64.deb
    python -m tests.deploy.bare_debian pipx WHEELS

It needs root, `mmdebstrap`, and Debian's packages. WHEELS is a folder with the wheels of this project and of
all that requirements/client.lock names, with which pipx needs no index. The server runs outside of the bare
system, on this machine's loopback address. In place of systemd, the agent is started again when it ends.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedserver.rpc.client import OperatorClient
from shoal.core.errors import ShoalError
from tests.e2e.places import Place
from tests.releases import MINOR, PATCH, Maker

KINDS = {
    "deb": ("python3", "passwd", "ca-certificates"),
    "pipx": ("python3", "passwd", "ca-certificates", "pipx", "python3-venv"),
}
"""The packages of the bare system, beside the essential ones."""
BREAKS = {
    "fedclient/agent/agent.py": (
        "            return await self._link.report(report)",
        "            raise SystemExit(9)",
    )
}
"""A release that comes up, passes `check`, does its task, and dies before it can report it."""
LONGEST = 3600.0
"""Seconds after which something has hung."""
MOUNTS = 'mount -t proc proc "$0/proc"; mount --bind /dev "$0/dev"; exec chroot --userspec="$1" "$0" "${@:2}"'
SETTINGS = """learner: {builtin: mlp, options: {inputs: 4, hidden: [4], classes: 2}}
data: {npz: data.npz}
privacy: {allow_unprotected: true, allow_plain_weights: true}
updates: {source: /srv/releases, key: /srv/releases/maker.pem}
"""


def wait_for(condition: Callable[[], object]) -> None:
    until = time.monotonic() + LONGEST
    while not condition():
        if time.monotonic() > until:
            sys.exit(f"this did not come within {LONGEST:.0f} s")
        time.sleep(1.0)


class Bare:
    """A root folder, and programs in it, which see its files and their own processes only. user: theirs."""

    def __init__(self, root: Path, user: str, variables: dict[str, str]) -> None:
        self.root, self.user, self._variables = root, user, variables

    def line(self, *words: object, user: str = "") -> list[str]:
        inner = [
            "env",
            "-i",
            *(f"{name}={value}" for name, value in self._variables.items()),
            *map(str, words),
        ]
        apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        return [*apart, "bash", "-ec", MOUNTS, str(self.root), user or self.user, *inner]

    def call(self, *words: object, user: str = "", given: str = "") -> str:
        done = subprocess.run(self.line(*words, user=user), input=given, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def size(self, folder: str) -> str:
        return subprocess.run(
            ["du", "-sh", self.root / folder], capture_output=True, text=True
        ).stdout.split()[0]


class Service:
    """The agent, started again whenever it ends, as systemd does."""

    def __init__(self, line: list[str], log: Path) -> None:
        self._line, self._log = line, log
        self._over = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep)
        self._thread.start()

    def _keep(self) -> None:
        with self._log.open("ab") as log:
            while not self._over.wait(0.5):
                self._process = subprocess.Popen(self._line, stdout=log, stderr=log)
                code = self._process.wait()
                print(f"    the agent ended with {code}", flush=True)

    def kill(self) -> None:
        """As a power cut does: all of its processes at once, and it is started again."""
        assert self._process is not None
        pid = self._process.pid
        for first in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            os.kill(int(first), signal.SIGKILL)  # with the first one of its name space, all others go

    def stop(self) -> None:
        self._over.set()
        self.kill()
        self._thread.join()


def made(kind: str, folder: Path) -> Path:
    """A new root."""
    root = folder / "root"
    line = [
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        f"--include={','.join(KINDS[kind])}",
        "bookworm",
        root,
    ]
    subprocess.run([*map(str, line)], check=True)
    return root


@contextmanager
def timed(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - began:.0f} s", flush=True)


def installed(kind: str, given: Path, root: Path) -> tuple[Bare, list[str], str]:
    """The bare system with the client, how it is started, and where its state is."""
    if kind == "deb":
        bare = Bare(root, "root:root", {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
        shutil.copy(given, root / "fedclient.deb")
        with timed(f"dpkg -i ({given.stat().st_size >> 20} MiB)"):
            bare.call("dpkg", "-i", "/fedclient.deb")
        (root / "fedclient.deb").unlink()
        bare.user = "shoal-device:shoal-device"
        return bare, ["/usr/bin/fedclient"], "/var/lib/shoal-device"
    bare = Bare(
        root, "root:root", {"PATH": "/home/box/.local/bin:/usr/bin:/bin:/usr/sbin", "HOME": "/home/box"}
    )
    bare.call("useradd", "--create-home", "box")
    shutil.copytree(given, root / "srv/wheels")
    bare.user = "box:box"
    with timed("pipx install"):
        bare.call("pipx", "install", "--pip-args=--no-index --find-links /srv/wheels", "shoal-fed[client]")
    shutil.rmtree(root / "srv/wheels")
    return bare, ["/home/box/.local/bin/fedclient"], "/home/box/state"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("given", type=Path, help="the Debian package, or the folder of wheels")
    parser.add_argument("--root", type=Path, help="a bare system that is there already, and is changed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bare-debian-") as scratch:
        folder = Path(scratch)
        folder.chmod(0o755)
        if options.root is None:
            with timed("mmdebstrap"):
                options.root = made(options.kind, folder)
        show(options.kind, options.given, options.root, folder)


def show(kind: str, given: Path, root: Path, folder: Path) -> None:
    print(f"{kind}: bare system {Bare(root, '', {}).size('.')}")
    bare, program, state = installed(kind, given, root)
    print(f"installed: {bare.size('opt/shoal' if kind == 'deb' else 'home/box/.local')}")
    place = Place(folder / "place")
    place.root.mkdir()
    maker = Maker(root / "srv/releases")
    with place.up():
        place.device("box")
        settings = root / "etc/shoal/device.yaml"
        settings.parent.mkdir()
        shutil.copy(place.root / "box/data.npz", settings.parent)
        settings.write_text(SETTINGS)
        for path in (settings, settings.parent / "data.npz"):
            path.chmod(0o644)
        line = place.server("token", "create")["join"]
        calling = ("--config", "/etc/shoal/device.yaml", "--state", state)
        with timed("join"):
            bare.call(*program, "join", "-", "--device", "box", *calling, given=line)
        place.server("run", "start", "trial", "--algorithm", "fedavg", "--set", "rounds=100000")
        service = Service(bare.line(*program, "run", *calling), folder / "agent.log")
        try:
            played(place, maker, bare, service, root / state.lstrip("/"), [*program, "status", *calling])
        finally:
            service.stop()
            said = (folder / "agent.log").read_text(errors="replace").splitlines()
            print("\n".join(f"    | {each}" for each in said if "version" in each or "error" in each))
        gone(kind, bare, root)


def played(place: Place, maker: Maker, bare: Bare, service: Service, state: Path, status: list[str]) -> None:
    software = state / "software"

    def standing() -> dict[str, Any]:
        path = software / "standing.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def runs() -> tuple[str | None, bool]:
        found = standing()
        return found.get("current"), found.get("settled", False)

    def rounds() -> int:
        with suppress(ShoalError):
            return int(place.server("run", "show", "trial")["round"])
        return 0

    def version() -> str:
        with OperatorClient(place.state) as client:
            (found,) = client.status().devices
        return found.software.rpartition(" ")[2]

    with timed("the first three rounds"):
        wait_for(lambda: rounds() >= 3)
    before = rounds()
    print(f"publish {PATCH} after {before} rounds, {version()} runs")
    maker.publish(PATCH)
    service.kill()
    with timed(f"update to {PATCH}, from a kill -9"):
        wait_for(lambda: runs() == (PATCH, True) and version() == PATCH)
    wait_for(lambda: rounds() > before)
    size = bare.size(str(software.relative_to(bare.root)))
    print(f"after {rounds()} rounds, {version()} runs; its folder has {size}")
    maker.publish(MINOR, BREAKS)
    service.kill()
    with timed(f"{MINOR}, which is broken, is tried and left, from a kill -9"):
        wait_for(lambda: MINOR in standing().get("failed", {}))
    before = rounds()
    wait_for(lambda: rounds() > before + 1)
    print(f"after {rounds()} rounds, {version()} runs; failed: {standing()['failed']}")
    print("\n".join(f"    | {each}" for each in bare.call(*status).splitlines()))


def gone(kind: str, bare: Bare, root: Path) -> None:
    if kind == "deb":
        print(bare.call("dpkg", "--purge", "fedclient", user="root:root").strip())
        places: tuple[str, ...] = ("opt/shoal", "var/lib/shoal-device", "usr/bin/fedclient", "etc/shoal")
    else:
        bare.call("pipx", "uninstall", "shoal-fed")
        places = ("home/box/.local/pipx/venvs/shoal-fed", "home/box/.local/bin/fedclient", "home/box/state")
    for name in places:
        path = root / name
        left = sorted(each.name for each in path.iterdir()) if path.is_dir() else path.exists()
        print(f"    {name}: {left or 'gone'}")


if __name__ == "__main__":
    main()
