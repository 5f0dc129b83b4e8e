"""Keys and URLs of a publication's objects, for programs that read the store themselves."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import ProxyHandler, build_opener

import obstore
import pytest
from obstore.store import AzureStore, GCSStore, LocalStore, MemoryStore, S3Store

from examples.servers import S3Server
from fencing import Fence, GuardUnavailable
from storage_guards import ObjectStoreGuard
from tests.support.object_copies import on_disk
from tests.support.object_faults import FaultyStore
from tests.support.object_guards import PublicationDesk as Desk
from tests.support.object_guards import probed
from tests.support.servers.azure import AzureServer

R = "orders:1"
A = Fence(R, 1, "a" * 22)
PART, CITY = "year=2026/month=11/part-0.csv", "city=São Paulo/x+y.csv"
ESCAPED = "!escaped/city=S%C3%A3o%20Paulo/x%2By.csv"
DIRECTORY = "fencing/orders=3A1/"


@pytest.fixture
def current(desk: Desk) -> Any:
    return desk.publish(A, {PART: b"1", CITY: b"2"}, claim=True)


def over(publication: Any, store: Any) -> Any:
    """The same publication, of a guard on another store. Nothing is asked there."""
    other = copy.copy(publication)
    other._guard = type(publication._guard)(store)
    return other


STORES: dict[str, tuple[Any, str]] = {
    "s3": (lambda **more: S3Store("acme", region="eu-central-1", skip_signature=True, **more), "s3://acme/"),
    "gs": (lambda **more: GCSStore("acme", config={"skip_signature": True}, **more), "gs://acme/"),
    "az": (lambda **more: AzureStore("acme", account_name="a", config={"skip_signature": True}, **more), "az://acme/"),
}


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("side", ["sync"], indirect=True)
def test_a_url_is_the_bucket_and_the_key(current: Any, kind: str) -> None:
    make, root = STORES[kind]
    plain = over(current, make())
    assert plain.urls() == {name: root + key for name, key in plain.bucket_keys().items()}
    assert plain.bucket_keys([PART]) == {PART: DIRECTORY + current[PART].key}
    assert plain.urls([PART])[PART].endswith("/~/" + PART), "partitions keep their names"
    assert plain.urls([CITY])[CITY].endswith("/~/" + ESCAPED), "and a key stays as it is"
    own = over(current, make(prefix="own/prefix"))
    assert own.bucket_keys([PART]) == {PART: "own/prefix/" + DIRECTORY + current[PART].key}
    assert own.urls([PART]) == {PART: root + own.bucket_keys([PART])[PART]}
    assert own.urls([PART], base="s3a://acme/") == {PART: "s3a://acme/" + own.bucket_keys([PART])[PART]}


def test_a_url_of_a_file_is_where_the_file_is(current: Any, desk: Desk, tmp_path: Path) -> None:
    urls = over(current, on_disk(desk.store, tmp_path)).urls()
    for name, url in urls.items():
        assert url.startswith("file:///")
        assert Path(unquote(urlsplit(url).path)).read_bytes() == desk.call(current.read, name)
    assert over(current, LocalStore()).urls([PART]) == {PART: "file:///" + DIRECTORY + current[PART].key}


def test_names_are_checked(current: Any) -> None:
    with pytest.raises(KeyError, match="'x' is not in the publication of 'orders:1', which has 'year=2026"):
        current.bucket_keys(["x"])
    with pytest.raises(TypeError, match="several names"):
        current.bucket_keys(PART)


def test_a_store_without_a_url_is_refused(current: Any) -> None:
    for store in (MemoryStore(), FaultyStore()):
        with pytest.raises(ValueError, match="pass base="):
            over(current, store).urls()
    assert current.urls([PART], base="https://cdn.example") == {
        PART: f"https://cdn.example/{DIRECTORY}{current[PART].key}"
    }


# Signed ones


def test_a_store_that_cannot_sign_is_refused(current: Any, desk: Desk) -> None:
    assert "use urls()" in str(desk.side.expect(ValueError, current.signed_urls, 60))


@pytest.mark.parametrize("seconds", [0, 604801])
def test_a_time_that_no_store_takes_is_refused(current: Any, desk: Desk, seconds: float) -> None:
    store = S3Store("acme", region="eu-central-1", access_key_id="a", secret_access_key="b")
    assert "604800" in str(desk.side.expect(ValueError, over(current, store).signed_urls, seconds))


def test_credentials_that_cannot_be_got_are_no_answer(current: Any, desk: Desk) -> None:
    def nothing() -> Any:
        raise ConnectionError("the service of credentials is away")

    store = S3Store("acme", region="eu-central-1", credential_provider=nothing)
    assert "is away" in str(desk.side.expect(GuardUnavailable, over(current, store).signed_urls, 60))


@pytest.fixture
def get() -> Callable[[str], bytes]:
    opener = build_opener(ProxyHandler({}))
    return lambda url: opener.open(url, timeout=60).read()


@pytest.mark.thorough
@pytest.mark.parametrize("side", ["sync"], indirect=True)
def test_whoever_has_a_signed_url_reads_exactly_this(side: Any, s3_server: S3Server, get: Any) -> None:
    desk = Desk(side, s3_server.store(prefix="own/prefix"), s3_server)
    objects = {PART: b"1", CITY: b"2", "50%/*?": b"3"}
    urls = desk.publish(A, objects, claim=True).signed_urls(60)
    assert {name: get(url) for name, url in urls.items()} == objects
    assert "X-Amz-Expires=60" in urls[PART]
    newer = Fence(R, 2, "b" * 22)
    desk.publish(newer, {PART: b"new"}, claim=True)
    assert {name: get(url) for name, url in urls.items()} == objects, "though another one is current"
    desk.call(desk.guard.collect, newer)
    for url in urls.values():
        with pytest.raises(HTTPError, match="404"):
            get(url)


@pytest.mark.thorough
@pytest.mark.parametrize("side", ["sync"], indirect=True)
def test_azure_answers_the_urls_that_are_signed(side: Any, azure_server: AzureServer, get: Any) -> None:
    """obstore signs escaped keys wrongly, so they are refused."""
    desk = Desk(side, azure_server.store(), azure_server)
    objects = {PART: b"1", "a!*'()=_-/b.c": b"2"}
    published = desk.publish(A, {**objects, CITY: b"3"}, claim=True)
    assert {name: get(url) for name, url in published.signed_urls(60, objects).items()} == objects
    assert "use a name of other characters" in str(desk.side.expect(ValueError, published.signed_urls, 60))
    with pytest.raises(HTTPError, match="403"):
        get(obstore.sign(desk.store, "GET", published.bucket_keys()[CITY], timedelta(seconds=60)))


@pytest.mark.thorough
@pytest.mark.parametrize("side", ["sync"], indirect=True)
def test_the_keys_are_those_of_the_bucket(side: Any, s3_server: S3Server) -> None:
    bucket = s3_server.new_bucket()
    guard = probed(ObjectStoreGuard(s3_server.store(bucket=bucket, prefix="own/prefix")), s3_server)
    published = guard.publish(A, {PART: b"1", CITY: b"2"}, claim=True)
    whole = s3_server.store(bucket=bucket)
    for name, key in published.bucket_keys().items():
        assert bytes(whole.get(key).bytes()) == published.read(name)
        assert published.urls()[name] == f"s3://{bucket}/{key}"
