"""Object stores that misbehave, as real ones do: each kind of misbehaviour is real, seen through obstore."""

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError, PreconditionError

from examples.servers import ObjectServer, S3Server
from tests.support import wait_until
from tests.support.fixtures import HttpProxyFactory
from tests.support.object_checks import at_once, content, version
from tests.support.servers import GCSServer, HttpProxy, Request

if TYPE_CHECKING:
    from obstore import PutMode
    from obstore.store import ObjectStore, RetryConfig

pytestmark = pytest.mark.thorough  # it tests only what other tests use

NO_RETRIES: "RetryConfig" = {"max_retries": 0}


def is_put(request: Request) -> bool:
    return request.method == "PUT"


class Between:
    """A bucket, seen directly and through a proxy."""

    def __init__(self, server: ObjectServer, proxy: HttpProxy) -> None:
        self.server = server
        self.proxy = proxy
        self.bucket = server.new_bucket()
        self.direct = server.store(bucket=self.bucket)

    def through(self, **options: Any) -> "ObjectStore":
        return self.server.store(bucket=self.bucket, via=self.proxy, **options)


@pytest.fixture
def between(object_server: ObjectServer, http_proxy: HttpProxyFactory) -> Between:
    return Between(object_server, http_proxy(object_server))


def test_a_proxy_without_rules_changes_nothing(between: Between) -> None:
    store = between.through()
    body = bytes(range(256)) * 50_000
    obstore.put(store, "a/big ä", body, use_multipart=True, attributes={"label": "green"})
    assert content(store, "a/big ä") == body
    assert obstore.head(store, "a/big ä")["size"] == len(body)
    assert obstore.get(store, "a/big ä").attributes["label"] == "green"
    made = obstore.put(store, "key", b"x", mode="create")
    assert version(obstore.head(between.direct, "key")) == version(made)
    with pytest.raises(PreconditionError):
        obstore.put(store, "key", b"z", mode=_other_than(store, "key"))
    obstore.delete(store, "key")
    assert [entry["path"] for entry in obstore.list(store).collect()] == ["a/big ä"]


def _other_than(store: "ObjectStore", key: str) -> Any:
    """A version that the object once had."""
    old = version(obstore.head(store, key))
    obstore.put(store, key, content(store, key) + b"+")
    return old


def test_conditions_ignored(between: Between) -> None:
    store = between.through(**between.server.unsigned)
    obstore.put(store, "key", b"first")
    between.proxy.strip()
    obstore.put(store, "key", b"second", mode="create")
    obstore.put(store, "key", b"third", mode=_other_than(store, "key"))
    assert content(between.direct, "key") == b"third"
    between.proxy.restore()
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "key", b"fourth", mode="create")


@pytest.mark.parametrize(("ignored", "kept"), [("If-Match", "create"), ("If-None-Match", "update")])
def test_only_one_condition_ignored(s3_server: S3Server, http_proxy: HttpProxyFactory, ignored: str, kept: str) -> None:
    between = Between(s3_server, http_proxy(s3_server))
    store = between.through()
    obstore.put(store, "key", b"first")
    old = _other_than(store, "key")
    between.proxy.strip(ignored)
    if kept == "create":
        obstore.put(store, "key", b"second", mode=old)
        with pytest.raises(AlreadyExistsError):
            obstore.put(store, "key", b"third", mode="create")
    else:
        obstore.put(store, "key", b"second", mode="create")
        with pytest.raises(PreconditionError):
            obstore.put(store, "key", b"third", mode=old)
    assert content(between.direct, "key") == b"second"


@pytest.mark.parametrize("mode", ["create", "update"])
def test_refused_though_carried_out(between: Between, mode: str) -> None:
    store = between.through()
    condition: PutMode = "create"
    if mode == "update":
        condition = version(obstore.put(store, "key", b"first"))
    rule = between.proxy.answer_when(is_put, 412, carried_out=True)
    with pytest.raises((AlreadyExistsError, PreconditionError)):
        obstore.put(store, "key", b"second", mode=condition)
    assert rule.fired == 1
    assert content(store, "key") == b"second"


def test_a_retry_of_the_client_library_is_refused_by_its_own_first_attempt(between: Between) -> None:
    store = between.through()  # with obstore's own retries
    seen = version(obstore.put(store, "key", b"first"))
    between.proxy.answer_when(is_put, 503, carried_out=True)
    with pytest.raises(PreconditionError):
        obstore.put(store, "key", b"second", mode=seen)
    assert content(store, "key") == b"second"


@pytest.mark.parametrize("what", ["reply", "request"])
def test_the_connection_breaks(between: Between, what: str) -> None:
    store = between.through(retry_config=NO_RETRIES)
    seen = version(obstore.put(store, "key", b"first"))
    proxy = between.proxy
    rule = (proxy.drop_reply_when if what == "reply" else proxy.drop_request_when)(is_put)
    with pytest.raises(GenericError):
        obstore.put(store, "key", b"second", mode=seen)
    assert rule.fired == 1
    assert content(store, "key") == (b"second" if what == "reply" else b"first")


@pytest.mark.parametrize("status", [409, 429, 503])
def test_turned_away_a_few_times(between: Between, status: int) -> None:
    store = between.through(retry_config=NO_RETRIES)
    rule = between.proxy.answer_when(lambda request: "key" in request.path, status, times=2)
    for _ in range(2):
        with pytest.raises(BaseError):
            obstore.put(store, "key", b"x", mode="create")
    assert rule.fired == 2
    obstore.put(store, "other", b"x", mode="create")
    obstore.put(store, "key", b"x", mode="create")


def test_a_put_arrives_after_its_client_gave_up(between: Between) -> None:
    store = between.through(client_options={"timeout": "200ms"}, retry_config=NO_RETRIES)
    seen = version(obstore.put(between.direct, "key", b"first"))
    hold = between.proxy.hold_when(is_put)
    with pytest.raises(GenericError):
        obstore.put(store, "key", b"late", mode=seen)
    assert hold.fired == 1
    assert content(between.direct, "key") == b"first"
    hold.release()
    assert hold.wait_landed(60)
    assert hold.statuses[0] < 300
    assert content(between.direct, "key") == b"late"


def test_a_late_put_is_refused_after_a_faster_one(between: Between) -> None:
    store = between.through()
    seen = version(obstore.put(between.direct, "key", b"first"))
    hold = between.proxy.hold_when(is_put)
    refused: list[BaseException] = []

    def put_late() -> None:
        try:
            obstore.put(store, "key", b"late", mode=seen)
        except PreconditionError as error:
            refused.append(error)

    late = threading.Thread(target=put_late)
    late.start()
    assert hold.wait(60)
    obstore.put(between.direct, "key", b"faster", mode=seen)
    hold.release()
    late.join(60)
    assert len(refused) == 1
    assert content(between.direct, "key") == b"faster"


def test_a_put_lands_though_its_task_was_cancelled(between: Between) -> None:
    store = between.through()
    seen = version(obstore.put(between.direct, "key", b"first"))
    hold = between.proxy.hold_when(is_put)

    async def cancel() -> None:
        put = asyncio.ensure_future(obstore.put_async(store, "key", b"cancelled", mode=seen))
        assert await asyncio.to_thread(hold.wait, 60)
        put.cancel()
        with pytest.raises(asyncio.CancelledError):
            await put

    asyncio.run(cancel())
    assert content(between.direct, "key") == b"first"
    hold.release()
    assert hold.wait_landed(60)
    assert content(between.direct, "key") == b"cancelled"


def test_etags_in_other_forms(s3_server: S3Server, http_proxy: HttpProxyFactory) -> None:
    between = Between(s3_server, http_proxy(s3_server))
    store = between.through()
    between.proxy.etags(replies="unquoted", demanded="unquoted")
    made = obstore.put(store, "key", b"first")["e_tag"]
    assert made is not None
    assert not made.startswith('"')
    assert obstore.head(store, "key")["e_tag"] == made
    with pytest.raises(PreconditionError):
        obstore.put(store, "key", b"second", mode={"e_tag": f'"{made}"'})
    obstore.put(store, "key", b"second", mode={"e_tag": made})
    between.proxy.etags(replies="quoted", demanded="unquoted")
    made = obstore.head(store, "key")["e_tag"]
    assert made is not None
    with pytest.raises(PreconditionError):
        obstore.put(store, "key", b"third", mode={"e_tag": made})
    obstore.put(store, "key", b"third", mode={"e_tag": made.strip('"')})


def test_a_racy_s3_lets_all_win(racy_s3_server: S3Server) -> None:
    store = racy_s3_server.store()
    wins = []

    def create(number: int) -> None:
        obstore.put(store, "key", b"%d" % number, mode="create")
        wins.append(number)

    at_once(create)
    assert len(wins) > 1
    with pytest.raises(AlreadyExistsError):  # one after the other, nothing is to be seen
        obstore.put(store, "key", b"late", mode="create")


def test_s3rver_ignores_every_condition(s3rver_server: S3Server) -> None:
    store = s3rver_server.store()
    old = version(obstore.put(store, "key", b"first"))
    obstore.put(store, "key", b"second", mode="create")
    obstore.put(store, "key", b"third", mode=old)
    obstore.put(store, "other", b"fourth", mode=old)
    # Nor is a put over when it is answered: its bytes may be there a little later.
    wait_until(lambda: (content(store, "key"), content(store, "other")) == (b"third", b"fourth"))
    assert content(store, "key") == b"third"


def test_closing_ends_the_threads_and_what_is_held(gcs_server: GCSServer) -> None:
    before = set(threading.enumerate())
    bucket = gcs_server.new_bucket()
    with HttpProxy(gcs_server.host, gcs_server.port) as proxy:
        store = gcs_server.store(bucket=bucket, via=proxy, retry_config=NO_RETRIES)
        obstore.put(store, "key", b"first")
        hold = proxy.hold_when(is_put)
        errors: list[BaseException] = []

        def put() -> None:
            try:
                obstore.put(store, "key", b"second")
            except BaseError as error:
                errors.append(error)

        waiting = threading.Thread(target=put)
        waiting.start()
        assert hold.wait(60)
    waiting.join(60)
    assert len(errors) == 1
    assert content(gcs_server.store(bucket=bucket), "key") == b"first"
    assert not [each for each in set(threading.enumerate()) - before if not each.name.startswith("fencing-")]


def test_close_raises_the_error_of_a_predicate(gcs_server: GCSServer) -> None:
    bucket = gcs_server.new_bucket()
    proxy = HttpProxy(gcs_server.host, gcs_server.port)
    proxy.drop_reply_when(lambda request: bool(1 / 0))
    with pytest.raises(BaseError):
        obstore.put(gcs_server.store(bucket=bucket, via=proxy, retry_config=NO_RETRIES), "key", b"")
    with pytest.raises(ZeroDivisionError):
        proxy.close()
    proxy.close()  # once is enough, twice does no harm
