"""A server of the S3 API for tests: moto's, on a free port of this machine, with a new bucket for each test.

It is a stand-in: it keeps objects in memory and checks no signatures. Tests that need it are skipped, with
the reason, where it is not installed.
"""

import importlib.util
import itertools
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from fedserver.ha.bucket import BucketAddress
from tests.waiting import free_port

KEYS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def lacking() -> str:
    """Why there is no such server here; "" if there is one."""
    for name in ("boto3", "moto", "flask"):
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed"
    return ""


class Buckets:
    """A running server. Its objects outlive `stop` and `start`."""

    def __init__(self) -> None:
        import boto3

        self.url, self._numbers = f"http://127.0.0.1:{free_port()}", itertools.count(1)
        self.start()
        self.client: Any = boto3.client("s3", endpoint_url=self.url)

    def start(self) -> None:
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # not a line for each call
        port = int(self.url.rpartition(":")[2])
        self._server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
        self._server.start()
        self.is_running = True

    def stop(self) -> None:
        """From now on, connections are refused."""
        self._server.stop()
        self.is_running = False

    def bucket(self) -> BucketAddress:
        """A new and empty bucket."""
        name = f"shoal-{next(self._numbers)}"
        self.client.create_bucket(Bucket=name)
        return BucketAddress(name, "models/", self.url)

    def keys(self, address: BucketAddress) -> list[str]:
        """The keys in a bucket, without the prefix."""
        found = self.client.list_objects_v2(Bucket=address.bucket).get("Contents", ())
        return sorted(each["Key"].removeprefix(address.prefix) for each in found)


@contextmanager
def buckets() -> Iterator[Buckets]:
    with mock.patch.dict(os.environ, KEYS):
        running = Buckets()
        try:
            yield running
        finally:
            if running.is_running:
                running.stop()
