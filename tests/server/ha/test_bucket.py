"""Blobs in a bucket: it has every blob before a row does, and no server deletes what another one needs."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fedserver.ha import bucket as module
from fedserver.ha.bucket import Bucket, BucketAddress
from fedserver.store.engines import Elsewhere
from fedserver.store.reports import Arrival
from fedserver.store.store import Store
from shoal.core.errors import BucketAway, ConfigError
from shoal.core.exchange.tensors import digest
from tests.buckets import Buckets
from tests.postgresql import Cluster
from tests.server.ha.test_postgresql import end_sessions, until_leading
from tests.server.store.test_store import RECORD, arrive, checkpoint, model, report
from tests.waiting import HANG

pytest.importorskip("fedserver.ha.postgresql", reason="psycopg is not installed")
NAME = digest(model(1.0))


@pytest.fixture
def elsewhere(postgresql: Cluster, buckets: Buckets) -> Elsewhere:
    return Elsewhere(postgresql.database(), buckets.bucket())


@pytest.fixture
def address(elsewhere: Elsewhere) -> BucketAddress:
    assert isinstance(elsewhere.blobs, BucketAddress)
    return elsewhere.blobs


@pytest.fixture
def store(elsewhere: Elsewhere, tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path / "first", elsewhere)) as found:
        yield found


def names(buckets: Buckets, address: BucketAddress) -> list[str]:
    """The blobs in the bucket."""
    return [key.partition("/")[2].partition(".")[0] for key in buckets.keys(address)]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_bucket_has_a_blob_before_a_row_refers_to_it_and_loses_it_after_the_last_one(
    store: Store, buckets: Buckets, address: BucketAddress
) -> None:
    initial = checkpoint(store, 1.0)
    assert names(buckets, address) == [NAME]
    store.runs.add(RECORD, initial)
    store.runs.open_round("mnist", ("a",), "training")
    store.reports.add([Arrival.of(report(store, "a", 2.0))])
    assert sorted(names(buckets, address)) == sorted([NAME, digest(model(2.0))])
    store.runs.remove("mnist")
    until(lambda: names(buckets, address) == [])


def test_another_server_fetches_what_it_needs_and_verifies_it(
    store: Store, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    store.runs.add(RECORD, checkpoint(store, 1.0))
    store.close()
    with closing(Store(tmp_path / "second", elsewhere)) as second:
        assert second.blobs.size(NAME) == 0
        with second.blobs.open(NAME) as file:
            assert file.read() == model(1.0)["w"].tobytes()
        assert second.blobs.damage(NAME) == ""
        assert second.blobs.restored == []  # a blob that was not fetched yet is not damage


def test_a_damaged_file_is_restored_from_the_bucket(store: Store) -> None:
    store.runs.add(RECORD, checkpoint(store, 1.0))
    sound = store.blobs.path(NAME).read_bytes()
    store.blobs.path(NAME).write_bytes(b"\xff" + sound[1:])
    assert store.blobs.damage(NAME) == ""
    assert store.blobs.path(NAME).read_bytes() == sound
    assert "restored from its copy" in store.blobs.restored[0]


def test_a_damaged_object_is_not_used_and_is_stored_again(
    store: Store, buckets: Buckets, address: BucketAddress
) -> None:
    store.runs.add(RECORD, checkpoint(store, 1.0))
    (key,) = buckets.keys(address)
    buckets.client.put_object(Bucket=address.bucket, Key=address.prefix + key, Body=b"other bytes")
    store.blobs.path(NAME).unlink()
    assert "is missing" in store.blobs.damage(NAME)
    assert not store.blobs.path(NAME).exists()
    store.runs.keep("mnist", model(1.0))
    store.blobs.path(NAME).unlink()
    assert store.blobs.damage(NAME) == ""


def test_what_a_deposed_server_still_deletes_is_not_what_the_next_one_needs(
    store: Store,
    elsewhere: Elsewhere,
    postgresql: Cluster,
    buckets: Buckets,
    address: BucketAddress,
    tmp_path: Path,
) -> None:
    """The first server has decided that a blob is not needed, and is stopped before it deletes it. The next
    one stores the same bytes again."""
    store.runs.keep("mnist", model(1.0))
    end_sessions(postgresql, elsewhere.database)
    with closing(until_leading(tmp_path / "second", elsewhere)) as second:
        second.runs.add(RECORD, checkpoint(second, 1.0))
        assert len(buckets.keys(address)) == 2
        store.blobs.remove([NAME])
        until(lambda: len(buckets.keys(address)) == 1)
        second.blobs.path(NAME).unlink()
        assert second.blobs.damage(NAME) == ""


def test_a_deposed_server_that_cleans_up_deletes_nothing_of_the_next_one(
    store: Store,
    elsewhere: Elsewhere,
    postgresql: Cluster,
    buckets: Buckets,
    address: BucketAddress,
    tmp_path: Path,
) -> None:
    store.runs.keep("mnist", model(1.0))
    store.close()
    first = Store(tmp_path / "first", elsewhere)  # it has seen an object that is not needed
    end_sessions(postgresql, elsewhere.database)
    with closing(until_leading(tmp_path / "second", elsewhere)) as second:
        second.runs.add(RECORD, checkpoint(second, 1.0))
        first.blobs.copies.clean_up()
        until(lambda: len(buckets.keys(address)) == 1)
    first.close()
    with closing(until_leading(tmp_path / "third", elsewhere)) as third:
        assert third.blobs.damage(NAME) == ""


def test_objects_that_no_row_refers_to_are_deleted_by_the_next_start(
    store: Store, elsewhere: Elsewhere, buckets: Buckets, address: BucketAddress, tmp_path: Path
) -> None:
    store.runs.add(RECORD, checkpoint(store, 1.0))
    store.runs.keep("mnist", model(2.0))
    foreign = "elsewhere/notes.txt"
    buckets.client.put_object(Bucket=address.bucket, Key=address.prefix + foreign, Body=b"not ours")
    store.close()
    with closing(Store(tmp_path / "first", elsewhere)) as again:
        again.clean_up()
        until(lambda: len(buckets.keys(address)) == 2)
        assert foreign in buckets.keys(address)
        assert NAME in names(buckets, address)


def test_two_databases_share_a_bucket_without_harm(
    store: Store, postgresql: Cluster, address: BucketAddress, tmp_path: Path
) -> None:
    store.runs.add(RECORD, checkpoint(store, 1.0))
    with closing(Store(tmp_path / "other", Elsewhere(postgresql.database(), address))) as other:
        other.runs.add(RECORD, checkpoint(other, 1.0))
        other.clean_up()
        other.runs.remove("mnist")
    store.blobs.path(NAME).unlink()
    assert store.blobs.damage(NAME) == ""


def test_while_the_bucket_is_away_nothing_is_stored_and_the_same_is_possible_later(
    store: Store, unsteady: Buckets, address: BucketAddress
) -> None:
    arrive(store, "a", model(2.0))
    unsteady.stop()
    with pytest.raises(BucketAway, match=f"the bucket {address.bucket} at"):
        store.runs.keep("mnist", model(1.0))
    with pytest.raises(BucketAway):
        store.blobs.send("a", [digest(model(2.0))])
    assert store.blobs.copies.away is not None
    unsteady.start()
    store.blobs.copies.probe()
    assert store.blobs.copies.away is None
    store.runs.add(RECORD, checkpoint(store, 1.0))
    store.blobs.send("a", [digest(model(2.0))])
    unsteady.stop()
    assert store.blobs.damage(NAME) == ""  # a sound file needs no bucket
    store.blobs.accept("a", [digest(model(2.0))])


def test_a_server_does_not_begin_without_its_bucket(
    elsewhere: Elsewhere, unsteady: Buckets, tmp_path: Path
) -> None:
    unsteady.stop()
    with pytest.raises(BucketAway):
        Store(tmp_path / "first", elsewhere)


def test_a_bucket_without_the_blobs_of_the_database_is_refused(
    store: Store, elsewhere: Elsewhere, buckets: Buckets, tmp_path: Path
) -> None:
    store.runs.add(RECORD, checkpoint(store, 1.0))
    store.close()
    with pytest.raises(ConfigError, match="none of the blobs that the database needs"):
        Store(tmp_path / "second", Elsewhere(elsewhere.database, buckets.bucket()))


def test_an_object_of_many_parts_comes_back_as_it_was(
    buckets: Buckets, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "PART", 5 << 20)
    data = os.urandom((11 << 20) + 1)
    (tmp_path / "sent").write_bytes(data)
    bucket = Bucket(buckets.bucket())
    with closing(bucket):
        bucket.put("large", tmp_path / "sent", "")
        with (tmp_path / "fetched").open("wb") as file:
            assert bucket.fetch("large", file)
    assert (tmp_path / "fetched").read_bytes() == data


def test_a_fetch_that_breaks_goes_on_where_it_broke(
    buckets: Buckets, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from botocore.exceptions import ReadTimeoutError
    from botocore.response import StreamingBody

    monkeypatch.setattr(module, "CHUNK", 1000)
    data = os.urandom(5000)
    (tmp_path / "sent").write_bytes(data)
    bucket, asked = Bucket(buckets.bucket()), list[str]()
    real = StreamingBody.iter_chunks

    def breaking(self: StreamingBody, size: int) -> Iterator[bytes]:
        for number, chunk in enumerate(real(self, size)):
            if number == 2 and len(asked) == 1:
                raise ReadTimeoutError(endpoint_url="http://here")
            yield chunk

    monkeypatch.setattr(StreamingBody, "iter_chunks", breaking)
    with closing(bucket):
        bucket._client.meta.events.register(
            "before-send.s3.GetObject",
            lambda request, **_: asked.append(str(request.headers.get("Range", b""))),
        )
        bucket.put("object", tmp_path / "sent", "00" * 32)
        with (tmp_path / "fetched").open("wb") as file:
            assert bucket.fetch("object", file)
    assert (tmp_path / "fetched").read_bytes() == data
    assert "bytes=2000-" in asked[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://models", BucketAddress("models")),
        ("s3://models/a/b/", BucketAddress("models", "a/b/")),
        (
            "s3://models/a?endpoint_url=https://s3.example.org:9000&region_name=eu",
            BucketAddress("models", "a/", "https://s3.example.org:9000", "eu"),
        ),
        (  # with an option that does nothing any more
            "s3://models?endpoint_url=http://storage:8333&devices_url=https://s3.example.org",
            BucketAddress("models", "", "http://storage:8333"),
        ),
    ],
)
def test_an_address_is_read_and_written_back(text: str, expected: BucketAddress) -> None:
    assert BucketAddress.parse(text) == expected
    assert BucketAddress.parse(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("s3://", "not the name of a bucket"),
        ("s3://Not_A_Bucket/x", "not the name of a bucket"),
        ("s3://models?endpont_url=http://x", "no option 'endpont_url'"),
        ("s3://key:secret@models/x", "user name or a password"),
        ("s3://models?endpoint_url=http://key:secret@host", "user name or a password"),
        ("s3://models?devices_url=https://key:secret@host", "user name or a password"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_repeating_secrets(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        BucketAddress.parse(text)
    assert "secret" not in str(caught.value)
