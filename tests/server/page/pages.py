"""The page as a process of its own, and a browser's requests to it by hand."""

import http.client
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.programs import Running, Verb, started
from tests.waiting import HANG


@dataclass
class Page:
    """A running `fedserver page`. address: HOST:PORT. link: the first one, not yet used."""

    process: Running
    state: Path
    address: str
    link: str
    by: str = "--state"

    def get(self, path: str, method: str = "GET", **headers: str) -> "Answer":
        """One request. A header's name is given with underscores; `host` replaces the right one."""
        host, port = self.address.rsplit(":", 1)
        line = http.client.HTTPConnection(host, int(port), timeout=HANG)
        try:
            line.putrequest(method, path, skip_host="host" in headers)
            for name, value in headers.items():
                line.putheader(name.replace("_", "-"), value)
            line.endheaders()
            found = line.getresponse()
            return Answer(found.status, dict(found.getheaders()), found.read())
        finally:
            line.close()

    def new_link(self) -> str:
        """Another link, as `fedserver page --link` prints it."""
        line = ["fedserver", "page", "--link", self.by, str(self.state)]
        done = Verb(line, os.getcwd(), os.environ).end()
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def cookie(self) -> str:
        """What a browser sends back after it followed a new link."""
        answer = self.get(path_of(self.new_link()))
        assert answer.status == 200
        return answer.headers["set-cookie"].partition(";")[0]


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


def path_of(link: str) -> str:
    return re.sub(r"^http://[^/]+", "", link)


@contextmanager
def page(state: Path, listen: str = "127.0.0.1:0", by: str = "--state") -> Iterator[Page]:
    """Serve the page of a state folder, whether its server runs or not. by: "--connect" for the folder of an
    operator's certificate."""
    line, (source, sink) = ["fedserver", "page", by, str(state), "--listen", listen], os.pipe()
    with state.with_suffix(".page.log").open("a") as errors, os.fdopen(sink, "w") as out:
        process = started(line, os.getcwd(), {**os.environ, "PYTHONUNBUFFERED": "1"}, out, errors)
    said = os.fdopen(source)
    try:
        at, link = said.readline(), said.readline()
        assert "http://127.0.0.1:" in at, state.with_suffix(".page.log").read_text()
        yield Page(process, state, at.split("http://")[1].strip(), link.split()[-1], by)
    finally:
        process.terminate()
        try:
            process.wait(HANG)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        said.close()
