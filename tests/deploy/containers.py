"""The images of a server and of devices: built, and run as containers. Not a part of `make test`.

    python -m tests.deploy.containers [--index FOLDER]

It needs root, `mmdebstrap`, `buildah`, `crun`, and the indexes of Debian and of Python. A Debian 12 takes the
place of the base that the Dockerfiles name. FOLDER has an index of PyTorch's CPU builds (torch/index.html);
without it the device gets PyTorch with CUDA. Containers start as compose.yaml starts them: what the image
says, as its user, with its root read-only, no capabilities, and a folder for the state. Their network is this
machine's.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.deploy.bare_debian import timed, wait_for
from tests.e2e.places import Place, ending
from tests.waiting import free_port

ROOT = Path(__file__).parents[2]
PACKAGES = "python3,python3-venv,ca-certificates,passwd"
BASE = "FROM scratch\nADD base.tar /\nRUN ln -s python3 /usr/bin/python\n"
BUILD = ("buildah", "bud", "--isolation", "chroot")
RUNTIME = 'mount -t cgroup2 none /sys/fs/cgroup; exec crun --cgroup-manager=disabled run --bundle "$0" "$1"'
"""crun takes the usual mounts of this machine, where both versions of cgroups are, for none that it knows."""
MEMORY = ["nosuid", "nodev", "mode=1777", "size=256m"]


def output(*line: object, given: str = "", folder: Path | None = None) -> str:
    done = subprocess.run([*map(str, line)], input=given, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, line))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def built(scratch: Path, index: Path | None) -> None:
    base = scratch / "base.tar"
    with timed("the base"):
        output("mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", "bookworm", base)
        output(*BUILD, "-t", "shoal-base", "-f", "-", scratch, given=BASE)
    options = ("--build-arg", "BASE=localhost/shoal-base", "-v", "/etc/ssl/certs:/etc/ssl/certs:ro")
    of_torch = ("-v", f"{index}:/index:ro", "--build-arg", "PIP_EXTRA_INDEX_URL=file:///index")
    for role in ("server", "client", "infer"):
        more = of_torch if index and role == "client" else ()
        file = ROOT / f"deploy/docker/{role}.Dockerfile"
        with timed(f"shoal-{role}"):
            output(*BUILD, *options, *more, "-t", f"shoal-{role}", "-f", file, ROOT)


class Container:
    """An image, what is bound into it, and where its state is."""

    def __init__(self, image: str, folder: Path, *more: tuple[Path, str]) -> None:
        self.folder, self._number = folder, 0
        self._name = output("buildah", "from", image).strip()
        self._root = output("buildah", "mount", self._name).strip()
        found = json.loads(output("buildah", "inspect", "--type", "image", image))["OCIv1"]["config"]
        self._config, (place,) = found, found["Volumes"]
        users = (line.split(":") for line in Path(self._root, "etc/passwd").read_text().splitlines())
        (user,) = (each for each in users if each[2] == found["User"])
        self._user, self._group = int(user[2]), int(user[3])
        state = folder / "state"
        state.mkdir(parents=True)
        state.chmod(0o700)
        os.chown(state, self._user, self._group)
        self._bound = [(state, place, "rw"), *((path, target, "ro") for path, target in more)]

    def line(self, *words: object) -> list[str]:
        """The line that starts it. words: instead of what the image says, below its entry point."""
        self._number += 1
        bundle = self.folder / f"bundle-{self._number}"
        bundle.mkdir()
        output("crun", "spec", folder=bundle)
        given = json.loads((bundle / "config.json").read_text())
        given["root"] = {"path": self._root, "readonly": True}
        given["process"] |= {
            "terminal": False,
            "user": {"uid": self._user, "gid": self._group},
            "args": [*self._config["Entrypoint"], *(map(str, words) if words else self._config["Cmd"])],
            "env": self._config["Env"],
            "capabilities": {},
            "noNewPrivileges": True,
        }
        spaces = given["linux"]["namespaces"]
        given["linux"]["namespaces"] = [each for each in spaces if each["type"] != "network"]
        given["mounts"].append({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": MEMORY})
        for path, target, how in self._bound:
            options = {"source": str(path), "destination": target, "options": ["rbind", how]}
            given["mounts"].append({"type": "bind", **options})
        (bundle / "config.json").write_text(json.dumps(given))
        return ["unshare", "--mount", "sh", "-ec", RUNTIME, str(bundle), f"{self._name}-{self._number}"]

    def call(self, *words: object, given: str = "") -> str:
        return output(*self.line(*words), given=given)

    @contextmanager
    def running(self) -> Iterator["subprocess.Popen[str]"]:
        with (self.folder / "log").open("w") as log:
            process = subprocess.Popen(self.line(), stdout=log, stderr=log, text=True)
        with ending(process):
            yield process

    def remove(self) -> None:
        output("buildah", "rm", self._name)


def played(folder: Path) -> None:
    """A device trains two rounds, and one without PyTorch gets the model."""
    here, graphs = Place(folder / "place"), folder / "graphs"
    for made in (here.root, graphs):
        made.mkdir()
    trains, places = here.device("trains"), here.device("places")
    exported = here.call("fedclient", "export", "-c", trains, "--out", graphs / "graph.onnx")
    assert exported.returncode == 0, exported.stderr
    places.write_text(places.read_text().partition("\n")[2])  # and no learner
    for path in folder.glob("place/*/*"):
        path.chmod(0o644)
    server = Container("shoal-server", folder / "server", (graphs, "/srv/shoal"))
    device = Container("shoal-client", folder / "device", (trains.parent, "/etc/shoal"))
    light = Container("shoal-infer", folder / "light", (places.parent, "/etc/shoal"))
    at = ("--state", "/var/lib/shoal")
    calling = ("-c", "/etc/shoal/device.yaml", "--state", "/var/lib/shoal-device")

    def asked(*words: object) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(server.call(*words, *at, "--json"))["data"]
        return found

    def is_over() -> bool:
        return agent.poll() is not None or asked("run", "show", "trial")["stage"] == "finished"

    try:
        ports = ("--listen", f"127.0.0.1:{free_port()}", "--join-listen", f"127.0.0.1:{free_port()}")
        server.call("init", *at, "--host", "127.0.0.1", *ports)
        with server.running() as up:
            server.call("status", *at, "--wait", 60)
            for name, box in (("trains", device), ("places", light)):
                box.call("join", "-", "--device", name, *calling, given=asked("token", "create")["join"])
            shape = ("--graph", "/srv/shoal/graph.onnx", "--set", "rounds=2")
            asked("run", "start", "trial", "--algorithm", "fedavg", *shape)
            with timed("two rounds"), device.running() as agent:
                wait_for(is_over)
            print(light.call("place", "--run", "trial", *calling))
        print(f"the server ended with {up.returncode}, the device with {agent.returncode}")
    finally:
        for each in (server, device, light):
            each.remove()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--index", type=Path, help="a folder with an index of PyTorch's CPU builds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="containers-", dir="/var/tmp") as scratch:
        folder = Path(scratch)
        folder.chmod(0o755)
        built(folder, options.index)
        print(output("buildah", "images", "--format", "{{.Name}} {{.Size}}"))
        played(folder)


if __name__ == "__main__":
    main()
