"""The golden form of all that locks in etcd keep."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fencing.etcd.calls import Key
from fencing.etcd.layout import Record, forced_key, number_of, own_key, queue_of, record_of
from tests.support.etcd import EtcdSide
from tests.support.formats import unchanged

TOKEN = "a" * 22
HELD = '["aaaaaaaaaaaaaaaaaaaaaa", 1795313443589299, "worker 7 ü", 1795313443589306, 0, 0]'
RELEASED = '["aaaaaaaaaaaaaaaaaaaaaa", 1795313443589299, "worker 7 ü", 1795313443589306, 7, 1795313443612345]'


def test_the_names_of_the_keys() -> None:
    unchanged("the keys of a lock", queue_of("a/b:ü %"), "fencing/1/lock/a%2Fb:%C3%BC%20%25/")
    unchanged(
        "the key of a lease", own_key("orders:42", 0x7FEDCBA987654321), "fencing/1/lock/orders:42/7fedcba987654321"
    )
    unchanged("the key of a forced release", forced_key(TOKEN), "fencing/1/forced/ec7c494df6d2a7ea36668d656e6b8979")


def test_the_record_of_a_holder() -> None:
    made = Record(TOKEN, 1795313443589299, "worker 7 ü", 1795313443589306)
    unchanged("the record of a holder", made.text, HELD)
    released = made._replace(former=7, released_us=1795313443612345)
    unchanged("the record of a released lock", released.text, RELEASED)
    key = Key("fencing/1/lock/orders:42/1", RELEASED, 5, 7, 1)
    assert record_of(key) == released
    assert number_of(key, released) == 1795313443589306
    assert record_of(key._replace(value=RELEASED[:-1] + ', "of a later version"]')) == released


def test_a_lock_with_a_waiter(etcd: EtcdSide) -> None:
    """What etcd has. The numbers of leases, revisions and times are others in each run."""
    coordinator, name = etcd.coordinator(owner="worker 7"), "formats/1"
    lease = etcd.call(coordinator.acquire, name)
    [held] = etcd.keys(coordinator, name)
    shape: Any = re.sub(r"\d{10,}", "<number>", held.value.replace(lease.fence.token, "<token>"))
    unchanged("what a held lock has", shape, '["<token>", <number>, "worker 7", <number>, 0, 0]')
    unchanged("its key", re.sub(r"[0-9a-f]+$", "<lease>", held.name), "fencing/1/lock/formats%2F1/<lease>")
    assert held.name == own_key(name, held.lease)
    assert etcd.call(lease.release)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "waiting",
        "[",
        "[" * 100_000,
        "[1]",
        "{}",
        '["a", "b", "c", "d", "e", "f"]',
        f'["{TOKEN}", 1e999, "", 1, 0, 0]',
        RELEASED.replace("aa", ""),
        RELEASED.replace("1795313443589299", "-9"),
    ],
)
def test_what_is_no_record_is_another_programs(value: str) -> None:
    assert record_of(Key("fencing/1/lock/orders:42/1", value, 5, 7, 1)) is None
