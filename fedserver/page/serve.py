"""The page's process: its address, its key, and what a link needs to know of it."""

import asyncio
import ipaddress
import json
import secrets
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedserver.addresses import host_and_port
from fedserver.page.access import KEY_BYTES, Access
from shoal.core.errors import ConfigError, Unavailable
from shoal.shell import disk

KEY, RUNNING = "page.key", "page.json"
"""Files in the state folder: the key of links and sessions, and where the page is."""
CONNECTIONS = 128


@dataclass(frozen=True)
class Running:
    """A page process. address: HOST:PORT. start: its random name."""

    address: str
    start: str

    def link(self, key: bytes) -> str:
        """A link to it that is valid once."""
        return f"http://{self.address}/open/{Access(key, self.start).link(time.time())}"


def running(state: Path) -> Running:
    """The page that serves this state folder. Raises Unavailable if none does."""
    try:
        found = json.loads((state / RUNNING).read_text())
        page = Running(str(found["address"]), str(found["start"]))
        host, _, port = page.address.rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), timeout=5.0):
            return page
    except (OSError, ValueError, KeyError, TypeError):
        raise Unavailable(
            f"no page is served for {state}", f"start one with: fedserver page --state {state}"
        ) from None


def key_of(state: Path) -> bytes:
    """The page's key, which is made when it is needed first. Raises StorageFault."""
    path = state / KEY
    with disk.storing(path):
        if path.exists() and len(key := path.read_bytes()) == KEY_BYTES:
            return key
        key = secrets.token_bytes(KEY_BYTES)
        disk.write(path, key, mode=0o600)
        return key


def bound(listen: str) -> socket.socket:
    """A socket on this loopback address. Raises ConfigError for any other address, or one that is in use."""
    host, port = host_and_port("--listen", listen)
    host = host.strip("[]")
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise ConfigError(f"{listen!r} is not an address", "use a form like 127.0.0.1:50080") from None
    if not address.is_loopback:
        raise ConfigError(
            f"the page is served on a loopback address only, and {host} is none",
            "to see it from another machine, forward a port: ssh -L 50080:127.0.0.1:50080 SERVER",
        )
    found = socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((str(address), port))
    except OSError as error:
        found.close()
        raise ConfigError(f"cannot listen on {listen}: {error}", "give another one with --listen") from None
    return found


async def serve(state: Path, listen: str, announce: Callable[[Running, bytes], None]) -> None:
    """Serve the page of a state folder until SIGTERM or Ctrl-C.

    announce: called with the running page and its key as soon as it answers.
    """
    import uvicorn

    from fedserver.page.app import application
    from fedserver.page.asking import Server
    from fedserver.page.feed import Feed
    from fedserver.rpc.client import OperatorClient

    with bound(listen) as at:
        host, port = at.getsockname()[:2]
        page = Running(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", secrets.token_urlsafe(9))
        key, feed = key_of(state), Feed(Server(OperatorClient(state)))
        server = uvicorn.Server(
            uvicorn.Config(
                application(feed, Access(key, page.start), f"shoal-page-{port}"),
                lifespan="off",
                loop="asyncio",
                http="h11",
                ws="none",
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=CONNECTIONS,
                timeout_graceful_shutdown=1,
            )
        )
        # uvicorn raises the signal that ended it once more, which would kill this process before its end.
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, setattr, server, "should_exit", True)
        at.listen()
        disk.write(state / RUNNING, json.dumps(vars(page)).encode(), mode=0o600)
        announce(page, key)
        asking = asyncio.create_task(feed.ask())
        try:
            await server.serve(sockets=[at])
        finally:
            asking.cancel()
            (state / RUNNING).unlink(missing_ok=True)
