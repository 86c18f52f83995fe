"""Models from a bucket: only from hosts that the owner named, in order, and else from the server."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from fedclient.net.direct import PAUSE, Direct
from shoal.core.errors import Unavailable

DATA = bytes(range(256)) * 3000
NAME = "ab" * 32


class Server(BaseHTTPRequestHandler):
    """/whole has DATA, ranges included; /cut ends too early; /moved leads to /whole; the rest is refused."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/whole")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if path not in ("/whole", "/cut"):
            self.send_error(403)
            return
        start = int(self.headers.get("Range", "bytes=0-")[6:-1])
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(DATA) - start))
        self.end_headers()
        self.wfile.write(DATA[start:] if path == "/whole" else DATA[start : start + 1000])

    def log_message(self, format: str, *given: object) -> None:
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def fetched(direct: Direct, address: str, start: int = 0) -> bytes:
    async def fetch() -> bytes:
        return b"".join([chunk async for chunk in direct.chunks(address, start)])

    return asyncio.run(fetch())


@contextmanager
def refused(direct: Direct, why: str) -> Iterator[None]:
    """A fetch that fails: from then on, the server is asked."""
    assert direct.wants("before", 0)
    with pytest.raises(Unavailable, match=why):
        yield
    assert not direct.wants("after", 0)


def test_bytes_come_from_where_the_last_attempt_ended(port: int) -> None:
    for hosts in ({"127.0.0.1"}, {f"127.0.0.1:{port}"}):
        direct = Direct(hosts)
        for start in (0, 1, len(DATA) - 1):
            assert fetched(direct, f"http://127.0.0.1:{port}/whole?sign=ature", start) == DATA[start:]
        assert direct.wants(NAME, 0)


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1:{port}/whole?",
        "https://127.0.0.1:{port}/whole?",
        "http://localhost:{port}/whole?",
        "http://other.example.org/whole?",
        "http://s3.example.org/whole?",
        "https://user@s3.example.org/whole?",
        "https://s3.example.org:8443/whole?",
        "https://s3.example.org.example.com/whole?",
        "file:///etc/passwd",
        "https://[s3.example.org/",
        "https://s3.example.org:port/",
        "",
    ],
)
def test_a_server_cannot_make_a_device_connect_to_where_its_owner_does_not_want(
    port: int, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connected(*given: object, **named: object) -> None:
        raise AssertionError("it connects")

    monkeypatch.setattr(socket, "create_connection", connected)
    direct = Direct({"s3.example.org:443"})
    with refused(direct, "blob_hosts does not allow|an address that is none"):
        fetched(direct, address.format(port=port))


@pytest.mark.parametrize(
    ("path", "why"),
    [("/gone", "status 403"), ("/moved", "status 302"), ("/cut", "bytes too early")],
)
def test_what_is_not_given_is_asked_of_the_server(port: int, path: str, why: str) -> None:
    direct = Direct({"127.0.0.1"})
    with refused(direct, why):
        fetched(direct, f"http://127.0.0.1:{port}{path}?")


def test_an_address_may_be_a_number_without_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def connected(where: object, *given: object, **named: object) -> None:
        asked.append(where)
        raise ConnectionRefusedError("it is not there")

    monkeypatch.setattr(socket, "create_connection", connected)
    for host in ("2001:db8::a", "2001:db8::1"):
        direct = Direct({host})
        with refused(direct, "it is not there"):
            fetched(direct, f"https://[{host}]/whole?")
    assert asked == [("2001:db8::a", 443), ("2001:db8::1", 443)]


def test_a_bucket_that_is_away_is_tried_again_after_a_while() -> None:
    now = 0.0
    direct = Direct({"127.0.0.1"}, lambda: now)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with refused(direct, "does not give a model: .*refused"):
        fetched(direct, f"http://127.0.0.1:{port}/whole?")
    now = PAUSE
    assert direct.wants(NAME, 0)


def test_a_blob_that_is_fetched_once_more_from_its_beginning_comes_from_the_server() -> None:
    direct = Direct({"s3.example.org"})
    assert [direct.wants(NAME, start) for start in (0, 4096, 0)] == [True, True, False]
    assert direct.wants("cd" * 32, 0)
    assert not Direct().wants(NAME, 0)
