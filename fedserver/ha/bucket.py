"""A bucket behind the S3 API: whole objects are put, fetched, listed and deleted.

    s3://BUCKET/PREFIX                                      AWS
    s3://BUCKET/PREFIX?endpoint_url=https://s3.example.org  any other server of the same API

Credentials never stand in this address. boto3 finds them: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY,
AWS_SHARED_CREDENTIALS_FILE, ~/.aws, or the role of the machine or of the pod.

Every fault of the bucket is a BucketAway, wrong credentials included: they may be exchanged at any time, and
what failed can be tried again. Each call is tried twice, and then the caller decides how long to wait.
"""

import base64
import functools
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qsl, urlencode, urlsplit

from shoal.core.errors import BucketAway, ConfigError, near
from shoal.core.exchange.wire import CHUNK
from shoal.shell.config import does_nothing

log = logging.getLogger("shoal.server")

PART = 32 << 20
"""Bytes of a part of a large object, and of the largest object that is put as a whole."""
SENDERS = 4
"""How many parts of an object are under way at a time."""
CONNECT, READ, ATTEMPTS = 3.0, 20.0, 2
"""Seconds until a connection and an answer are given up, and how often a call is tried."""
AT_ONCE = 1000
"""How many objects one call deletes, which is the most that the API allows."""
SCHEME = "s3://"
OPTIONS = ("endpoint_url", "region_name")
FORMER = {"devices_url": "devices get models from the server"}
"""Options of an earlier version, and why they do nothing any more."""
HINT = "write s3://BUCKET/PREFIX, with ?endpoint_url=https://HOST for a server other than AWS"


@dataclass(frozen=True)
class BucketAddress:
    """Where blobs are in a bucket. prefix: with a slash at its end, or "". endpoint_url: "" for AWS."""

    bucket: str
    prefix: str = ""
    endpoint_url: str = ""
    region_name: str = ""

    @classmethod
    def parse(cls, text: str) -> "BucketAddress":
        """The address in `text`. Raises ConfigError; a secret in it is not repeated."""
        found = urlsplit(text)
        options = dict(parse_qsl(found.query))
        if any("@" in each for each in (found.netloc, *options.values())):
            raise ConfigError(
                "the address of the bucket has a user name or a password in it",
                "leave them out, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or write ~/.aws",
            )
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", found.netloc):
            raise ConfigError(f"{text}: {found.netloc!r} is not the name of a bucket", HINT)
        for name in FORMER.keys() & options.keys():
            does_nothing("the address of the bucket", name, FORMER[name])
            del options[name]
        if unknown := sorted(set(options) - set(OPTIONS)):
            raise ConfigError(f"the bucket has no option {unknown[0]!r}", near(unknown[0], [*OPTIONS]))
        prefix = found.path.strip("/")
        return cls(found.netloc, f"{prefix}/" if prefix else "", **options)

    def __str__(self) -> str:
        options = {name: getattr(self, name) for name in OPTIONS if getattr(self, name)}
        return f"{SCHEME}{self.bucket}/{self.prefix}".rstrip("/") + (
            f"?{urlencode(options, safe=':/')}" if options else ""
        )


class Bucket:
    """For any thread. away: why the last call that stores or reads failed; None if it did not.

    Raises ConfigError if boto3 is missing or cannot use the address, and BucketAway in every method.
    """

    def __init__(self, address: BucketAddress) -> None:
        try:
            from boto3.s3.transfer import TransferConfig
            from botocore.config import Config
        except ModuleNotFoundError:
            raise ConfigError(
                "the package boto3 is not installed, which a bucket needs",
                "pip install boto3",
            ) from None
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        self.away: BucketAway | None = None
        self._address, self._faults = address, (BotoCoreError, ClientError, Boto3Error)
        config = Config(
            connect_timeout=CONNECT,
            read_timeout=READ,
            retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
            max_pool_connections=32,
            # Other servers than AWS rarely resolve bucket.host, and not all of them know newer checksums.
            # A signed payload has its SHA-256 in the signature, so bytes that changed on the way are refused.
            s3={
                "payload_signing_enabled": True,
                "addressing_style": "path" if address.endpoint_url else "auto",
            },
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        places = {"endpoint_url": address.endpoint_url or None, "region_name": address.region_name or None}
        try:
            self._client: Any = _session().client("s3", config=config, **places)
        except (BotoCoreError, ValueError) as error:
            raise ConfigError(f"the bucket {address} cannot be used: {error}", HINT) from None
        self._transfer = TransferConfig(
            multipart_threshold=PART + 1, multipart_chunksize=PART, max_concurrency=SENDERS
        )

    def put(self, key: str, path: Path, sha256: str) -> None:
        """Store a file under a key. sha256: of its bytes; a bucket refuses others, unless they are many."""
        with path.open("rb") as file, self._calling():
            if path.stat().st_size <= PART:
                checksum = base64.b64encode(bytes.fromhex(sha256)).decode()
                self._client.put_object(**self._at(key), Body=file, ChecksumSHA256=checksum)
            else:
                self._client.upload_fileobj(file, Config=self._transfer, **self._at(key))

    def fetch(self, key: str, file: BinaryIO) -> bool:
        """Write an object's bytes to a file. False if there is no such object.

        A connection that breaks is taken up where it broke.
        """
        at, failures = file.tell(), 0
        with self._calling():
            while True:
                try:
                    answer = self._client.get_object(**self._at(key), **_range(file.tell() - at))
                    for chunk in answer["Body"].iter_chunks(CHUNK):
                        file.write(chunk)
                except self._faults as error:
                    if _code(error) == "NoSuchKey":
                        return False
                    failures += 1
                    if failures >= ATTEMPTS or _code(error):
                        raise
                else:
                    return True

    def probe(self, key: str) -> None:
        """Store an empty object, to learn whether the bucket takes anything."""
        with self._calling():
            self._client.put_object(**self._at(key), Body=b"")

    def keys(self, prefix: str) -> list[str]:
        """The keys that begin with `prefix`, without the prefix of the address."""
        found: list[str] = []
        with self._calling():
            pages = self._client.get_paginator("list_objects_v2")
            start = self._address.prefix
            for page in pages.paginate(Bucket=self._address.bucket, Prefix=start + prefix):
                found += [each["Key"].removeprefix(start) for each in page.get("Contents", ())]
        return found

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. Those that the bucket does not let go are reported in the log, and stay."""
        for start in range(0, len(keys), AT_ONCE):
            doomed = [{"Key": self._at(key)["Key"]} for key in keys[start : start + AT_ONCE]]
            try:
                answer = self._client.delete_objects(
                    Bucket=self._address.bucket, Delete={"Objects": doomed, "Quiet": True}
                )
            except self._faults as error:
                raise self._fault(error) from None
            if left := answer.get("Errors"):
                why = left[0].get("Message")
                log.warning("the bucket keeps %d objects that are not needed: %s", len(left), why)

    def close(self) -> None:
        self._client.close()

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self._address.bucket, "Key": self._address.prefix + key}

    @contextmanager
    def _calling(self) -> Iterator[None]:
        try:
            yield
        except self._faults as error:
            self.away = self._fault(error)
            raise self.away from None
        self.away = None

    def _fault(self, error: Exception) -> BucketAway:
        where = f"the bucket {self._address.bucket}"
        where += f" at {self._address.endpoint_url}" if self._address.endpoint_url else ""
        said = " ".join(str(error).split())
        return BucketAway(f"{where}: {said}", "check that it is there and that its keys are valid")


@functools.cache
def _session() -> Any:
    """What all clients of this process share; reading the API's description takes a moment."""
    import boto3

    logging.getLogger("botocore").setLevel(logging.WARNING)  # it reports each time where credentials are from
    return boto3.session.Session()


def _range(start: int) -> dict[str, str]:
    return {"Range": f"bytes={start}-"} if start else {}


def _code(error: Exception) -> str:
    """The code of an answer that the bucket gave; "" if there was none."""
    found = (getattr(error, "response", None) or {}).get("Error", {}).get("Code", "")
    return str(found)
