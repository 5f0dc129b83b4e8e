"""The golden form of all that locks in ZooKeeper keep."""

from __future__ import annotations

import re
import threading

import pytest

from fencing.kernel.fence import new_token
from fencing.zookeeper.layout import (
    BASES,
    LOCKS,
    Record,
    nodes_of,
    number_of,
    quoted,
    record_of,
    resource_of,
    taken_over,
)
from tests.support.zookeeper import ZooKeeperSide

TOKEN = "a" * 22


@pytest.mark.parametrize(
    ("resource", "name"),
    [
        ("orders:42", "orders:42"),
        ("a/b ü", "a%2Fb %C3%BC"),
        ("a@b=c+d,e.f~g", "a@b=c+d,e.f~g"),
        (".", "%2E"),
        ("..", "%2E%2E"),
        ("...", "%2E%2E%2E"),
        ("\0\n%", "%00%0A%25"),
    ],
)
def test_the_name_of_a_lock(resource: str, name: str) -> None:
    assert quoted(resource) == name
    assert resource_of(name) == resource


def test_a_record() -> None:
    held, waits = Record(1795313443589299, "worker 7"), Record(None, "wörker")
    assert held.data == b'["fencing", 1795313443589299, "worker 7"]'
    assert waits.data == '["fencing", null, "wörker"]'.encode()
    assert record_of(held.data) == held
    assert record_of(waits.data) == waits
    assert record_of(b'["fencing", 7, "of a later version", 1, {}]') == Record(7, "of a later version")
    assert number_of(Record(7, ""), 8) == 15
    assert number_of(waits, 8) is number_of(None, 8) is None
    for foreign in (b"", b"another program", b'["fencing", ', b'["fencing", "x", 1]', b"\xff"):
        assert record_of(foreign) is None
    for wrong in (
        b'1e999, "x"',
        b'-1, "x"',
        b'true, "x"',
        b"1" * 5000 + b', "x"',
        b"1, [1]",
        b'1, "\\ud800"',
        b'1, "\\n"',
        b"[" * 5000,
    ):
        foreign = b'["fencing", ' + wrong + b"]"
        assert record_of(foreign) is None


def test_the_names_of_a_queue() -> None:
    names = [f"{TOKEN}__lock__0000000012", f"{'b' * 22}~0123abcd__lock__0000000003", "x__lock__-000000001", "other"]
    assert [(node.order, node.token) for node in nodes_of(names)] == [(-1, "x"), (3, "b" * 22), (12, TOKEN)]
    path = f"/chroot{LOCKS}/x/{TOKEN}__lock__0000000012"
    assert taken_over(path, "c" * 22, "0123abcd") == f"/chroot{LOCKS}/x/{'c' * 22}__lock__0000000012"
    assert taken_over(path, TOKEN, "0123abcd") == f"/chroot{LOCKS}/x/{TOKEN}~0123abcd__lock__0000000012"


def test_a_lock_with_a_waiter(side: ZooKeeperSide) -> None:
    """What ZooKeeper has. Tokens, sequences and positions are others in each run."""
    coordinator, name = side.coordinator(owner="worker 7"), f"formats/{new_token()}"
    lease = side.call(coordinator.acquire, name, timeout=10)
    waiting = threading.Thread(target=lambda: side.call(side.call(coordinator.acquire, name, timeout=60).release))
    waiting.start()
    session = coordinator._backend._client.current()
    side.wait_until(lambda: session._child_watchers)  # before it queues, it tries
    path, (holder, waiter) = f"{LOCKS}/{quoted(name)}", side.queue(name)
    assert re.fullmatch(rf"{re.escape(lease.fence.token)}__lock__\d{{10}}", holder)
    [base] = side.client.get_children(BASES)
    data, stat = side.client.get(f"{path}/{holder}")
    assert data == f'["fencing", {base}, "worker 7"]'.encode()
    assert int(base) + stat.mzxid == lease.fence.number
    assert stat.ephemeralOwner == session.client_id[0]
    assert side.client.get(f"{path}/{waiter}")[0] == b'["fencing", null, "worker 7"]'
    side.call(lease.release)
    waiting.join(60)
