"""What a program of the same machine does to get predictions: HTTP on a Unix socket."""

import http.client
import json
import socket
from typing import Any


class Unix(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self._path)


def ask(path: str, body: bytes, headers: dict[str, str], method: str = "POST", to: str = "/predict") -> Any:
    connection = Unix(path)
    try:
        connection.request(method, to, body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()
