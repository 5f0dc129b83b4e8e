"""Guards and publications in other processes."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from obstore.store import S3Store

from examples.servers import S3Server
from fencing import Fence
from storage_guards import ObjectStoreGuard
from tests.support.object_copies import on_disk
from tests.support.object_guards import PublicationDesk as Desk
from tests.support.object_guards import guard_on, probed
from tests.support.sides import Side

R = "orders:1"
A, B = Fence(R, 1, "a" * 22), Fence(R, 2, "b" * 22)


def again(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def test_a_publication_that_was_pickled_is_the_same(desk: Desk, tmp_path: Path) -> None:
    desk.publish(A, {"x": b"1", "y": b"22"}, claim=True)
    store = on_disk(desk.store, tmp_path)
    read = desk.call(guard_on(desk.side, store).read, R)
    desk.publish(B, {"x": b"new"}, claim=True)
    on_disk(desk.store, tmp_path)
    other = again(read)
    assert (other, dict(other), other.published_at) == (read, dict(read), read.published_at)
    assert desk.call(other.read_all) == {"x": b"1", "y": b"22"}, "not what is current now"


def test_a_guard_that_was_pickled_has_the_same_settings(side: Side) -> None:
    store = S3Store("acme", region="eu-central-1", access_key_id="a", secret_access_key="b")
    guard = guard_on(side, store, prefix="own/", timeout=7.5, upload_timeout=2.5)
    other = again(guard)
    assert type(other) is type(guard)
    assert (repr(other), other._upload_timeout) == (repr(guard), 2.5)
    assert other._io.store == store


def test_a_guard_that_was_pickled_tries_its_store_out_anew(desk: Desk, tmp_path: Path) -> None:
    """The environment may have changed, and with it the store."""
    guard = probed(guard_on(desk.side, on_disk(desk.store, tmp_path)))
    assert guard._report is not None
    assert again(guard)._report is None


def test_what_is_in_this_process_alone_is_refused_in_words(desk: Desk) -> None:
    published = desk.publish(A, {"x": b"1"}, claim=True)
    for value in (desk.guard, published):
        with pytest.raises(TypeError, match=r"ObjectStoreGuard cannot be pickled.*MemoryStore.*S3Store"):
            pickle.dumps(value)


def length(publication: Any, name: str) -> int:
    with publication.open(name) as stream:
        return len(stream.read())


def overwrite(guard: ObjectStoreGuard, fence: Fence) -> str:
    return guard.publish(fence, {"x": b"by another process"}).id


@pytest.mark.thorough
def test_other_processes_read_and_publish(s3_server: S3Server) -> None:
    guard = probed(ObjectStoreGuard(s3_server.store(), timeout=60), s3_server)
    published = guard.publish(A, {f"{size}": bytes(size) for size in range(4)}, claim=True)
    guard.publish(B, {"x": b"newer"}, claim=True)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert list(pool.map(length, [published] * 4, published)) == list(range(4))
        written = pool.submit(overwrite, guard, B).result()
    current = guard.read(R)
    assert current is not None
    assert (current.id, current.read("x")) == (written, b"by another process")
