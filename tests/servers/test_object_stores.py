"""What every object store that behaves has to do: the guards' safety hangs on these conditions."""

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from examples.servers import ObjectServer, S3Server
from tests.support.fixtures import ProxyFactory
from tests.support.object_checks import CLIENTS, at_once, content, version

pytestmark = pytest.mark.thorough  # it tests only what other tests use


ROUNDS = 5


def test_create_only_where_nothing_is(object_server: ObjectServer) -> None:
    store = object_server.store()
    obstore.put(store, "key", b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "key", b"second", mode="create")
    assert content(store, "key") == b"first"
    obstore.delete(store, "key")
    obstore.put(store, "key", b"third", mode="create")
    assert content(store, "key") == b"third"


def test_update_only_what_was_seen(object_server: ObjectServer) -> None:
    store = object_server.store()
    first = version(obstore.put(store, "key", b"first", mode="create"))
    second = version(obstore.put(store, "key", b"second", mode=first))
    assert version(obstore.head(store, "key")) == second
    assert version(obstore.get(store, "key").meta) == second
    with pytest.raises(PreconditionError):
        obstore.put(store, "key", b"third", mode=first)
    assert content(store, "key") == b"second"


def test_update_creates_nothing(object_server: ObjectServer) -> None:
    store = object_server.store()
    gone = version(obstore.put(store, "key", b"first"))
    obstore.delete(store, "key")
    with pytest.raises((PreconditionError, FileNotFoundError)):
        obstore.put(store, "key", b"second", mode=gone)
    assert obstore.list(store).collect() == []


def test_deleting_what_is_not_there(object_server: ObjectServer) -> None:
    store = object_server.store()
    if isinstance(object_server, S3Server):
        obstore.delete(store, "key")
    else:
        with pytest.raises(FileNotFoundError):
            obstore.delete(store, "key")


def test_of_racing_creates_one_wins(object_server: ObjectServer) -> None:
    size = 1_000_000  # a server that looks first and stores later then takes its time in between
    bucket = object_server.new_bucket()
    stores = [object_server.store(bucket=bucket) for _ in range(CLIENTS)]
    for key in map(str, range(ROUNDS)):
        winners: list[int] = []

        def create(number: int, key: str = key, winners: list[int] = winners) -> None:
            try:
                obstore.put(stores[number], key, b"%d" % number * size, mode="create")
            except AlreadyExistsError:
                return
            winners.append(number)

        at_once(create)
        assert len(winners) == 1
        assert content(stores[0], key) == b"%d" % winners[0] * size


def test_racing_increments_add_up(object_server: ObjectServer) -> None:
    store = object_server.store()
    obstore.put(store, "counter", b"0")

    def increment(_: int) -> None:
        for _ in range(1000):
            found = obstore.get(store, "counter")
            count = int(bytes(found.bytes()))
            try:
                obstore.put(store, "counter", b"%d" % (count + 1), mode=version(found.meta))
            except PreconditionError:
                continue
            return
        raise AssertionError("1000 attempts, each in vain")

    for _ in range(ROUNDS):
        at_once(increment)
    assert content(store, "counter") == b"%d" % (CLIENTS * ROUNDS)


def test_big_uploads_in_parts_and_ranges(object_server: ObjectServer) -> None:
    store = object_server.store()
    body = bytes(range(256)) * 80_000  # 20 MB
    obstore.put(store, "big", body, attributes={"label": "green"})
    assert content(store, "big") == body
    assert bytes(obstore.get_range(store, "big", start=5_000_000, length=1000)) == body[5_000_000:5_001_000]
    assert obstore.get(store, "big").attributes["label"] == "green"


def test_metadata_of_a_put(object_server: ObjectServer) -> None:
    store = object_server.store()
    obstore.put(store, "key", b"", mode="create", attributes={"fence": "7", "Content-Type": "text/plain"})
    attributes = obstore.get(store, "key").attributes
    assert attributes["fence"] == "7"
    assert attributes["Content-Type"] == "text/plain"
    updated = obstore.put(store, "key", b"x", mode=version(obstore.head(store, "key")), attributes={"fence": "8"})
    assert obstore.get(store, "key").attributes["fence"] == "8"
    assert updated["e_tag"] == obstore.head(store, "key")["e_tag"]


@pytest.mark.parametrize(
    "object_server",
    ["gcs", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("s3", "azure"))],
    indirect=True,
)
def test_lists_are_sorted_complete_and_fresh(object_server: ObjectServer) -> None:
    store = object_server.store()
    keys = sorted(f"a/{number:04d}/=C3=A9 ~x" for number in range(1005))  # more than a page
    for key in keys:
        obstore.put(store, key, b"x")
    obstore.put(store, "b/other", b"x")
    assert [entry["path"] for entry in obstore.list(store, prefix="a").collect()] == keys
    obstore.delete(store, keys[0])
    assert obstore.list(store, prefix="a").collect()[0]["path"] == keys[1]
    top = obstore.list_with_delimiter(store)
    assert sorted(top["common_prefixes"]) == ["a", "b"]


def test_buckets_are_apart_and_stores_on_one_bucket_are_not(object_server: ObjectServer) -> None:
    bucket = object_server.new_bucket()
    obstore.put(object_server.store(bucket=bucket), "key", b"here")
    assert content(object_server.store(bucket=bucket), "key") == b"here"
    with pytest.raises(FileNotFoundError):
        content(object_server.store(), "key")


def test_a_stopped_reader_blocks_no_other_client(object_server: ObjectServer) -> None:
    bucket = object_server.new_bucket()
    store = object_server.store(bucket=bucket)
    obstore.put(store, "big", bytes(20_000_000))
    stopped = iter(obstore.get(store, "big").stream(min_chunk_size=1))
    next(stopped)  # what comes next fills the buffers in between, and stays there
    obstore.put(object_server.store(bucket=bucket), "key", b"x", mode="create")
    assert 0 < sum(len(chunk) for chunk in stopped) < 20_000_000


def test_a_bucket_that_is_not_there(object_server: ObjectServer) -> None:
    with pytest.raises((FileNotFoundError, BaseError)):
        obstore.put(object_server.store(bucket="no-such-bucket"), "key", b"", mode="create")


def test_through_a_proxy(object_server: ObjectServer, proxy: ProxyFactory) -> None:
    bucket = object_server.new_bucket()
    between = proxy(object_server)
    through = object_server.store(bucket=bucket, via=between, retry_config={"max_retries": 0})
    obstore.put(through, "key", b"first", mode="create")
    loss = between.drop_reply_when(lambda request: b"second" in request)
    with pytest.raises(BaseError):
        obstore.put(through, "key", b"second", mode=version(obstore.head(through, "key")))
    assert loss.fired == 1
    assert content(object_server.store(bucket=bucket), "key") == b"second"
