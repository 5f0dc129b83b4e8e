"""A kind of coordinator is registered by names alone: the classes of its clients, and the schemes of its URLs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import redis
import redis.asyncio
import sqlalchemy

from fencing import (
    AsyncFencedLock,
    FencedLock,
    LockTable,
    MemoryCoordinator,
)
from fencing.locks import registry
from fencing.locks.registry import connect, register

MODULE = "their_package.coordinator"


class TheirClient:
    """A client of a service of a third party."""

    def __init__(self) -> None:
        self.table = LockTable()


class Derived(redis.Redis):
    """A client of a service that speaks the protocol of Redis."""


class TheirCoordinator(MemoryCoordinator):
    def __init__(self, client: TheirClient, **options: Any) -> None:
        super().__init__(client.table, **options)


def connect_to_theirs(url: str, coordinator: Any, options: dict[str, Any], *, asynchronous: bool) -> Any:
    assert not asynchronous
    return coordinator(TheirClient(), **options)


@pytest.fixture(autouse=True)
def _registrations_of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_clients", {first: dict(names) for first, names in registry._clients.items()})
    monkeypatch.setattr(registry, "_schemes", dict(registry._schemes))
    monkeypatch.setattr(registry, "_loaded", set())
    module: Any = ModuleType(MODULE)
    module.TheirCoordinator = TheirCoordinator
    module.connect = connect_to_theirs
    monkeypatch.setitem(sys.modules, MODULE, module)


def register_theirs(**more: Any) -> None:
    name = f"{TheirClient.__module__}.{TheirClient.__qualname__}"
    if more:
        more["connect"] = f"{MODULE}:connect"
    register(name, coordinator=f"{MODULE}:TheirCoordinator", such_as="a TheirClient", **more)


def test_a_lock_from_a_client_of_a_third_party() -> None:
    register_theirs()
    client = TheirClient()
    one, two = FencedLock(client, "r"), FencedLock(client, "r", owner="me")  # type: ignore[arg-type]
    assert type(one.coordinator) is TheirCoordinator
    assert one.coordinator is two.coordinator
    assert FencedLock(TheirClient(), "r").coordinator is not one.coordinator  # type: ignore[arg-type]
    with one.hold(timeout=5) as lease:
        assert two.try_acquire() is None
        assert lease.held


def test_the_longest_name_that_fits_counts() -> None:
    register("redis.client", coordinator=f"{MODULE}:Other")
    register(f"{__name__}.Derived", coordinator=f"{MODULE}:TheirCoordinator")
    of = registry.registration_of
    assert [of(each).coordinator for each in (redis.Redis(), redis.asyncio.Redis(), Derived())] == [  # type: ignore[union-attr]
        f"{MODULE}:Other",
        "fencing.redis.coordinator:RedisCoordinator",
        f"{MODULE}:TheirCoordinator",
    ]


def test_a_side_that_is_missing() -> None:
    register_theirs(schemes=["theirs"])
    with pytest.raises(TypeError, match="AsyncFencedLock takes a client for asyncio; there is no such coordinator for"):
        AsyncFencedLock(TheirClient(), "r")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'theirs' has no coordinator for asyncio"):
        connect("theirs://", {}, asynchronous=True)


def test_an_error_names_the_registered_clients() -> None:
    clients = "a redis.Redis, an engine of SQLAlchemy or a kazoo.client.KazooClient"
    with pytest.raises(TypeError, match=f"takes a client, such as {clients}, or a coordinator, not int$"):
        FencedLock(5, "r")  # type: ignore[arg-type]
    register_theirs()
    with pytest.raises(
        TypeError,
        match=r"a redis\.asyncio\.Redis, an engine of SQLAlchemy, a kazoo.client.KazooClient or a TheirClient, or a",
    ):
        AsyncFencedLock(5, "r")  # type: ignore[arg-type]


def test_a_scheme_that_nobody_has_registered() -> None:
    with pytest.raises(
        ValueError, match="'theirs' is no scheme of a coordinator; those are etcd, etcds, mariadb, mysql, postgres"
    ):
        connect("theirs://", {}, asynchronous=False)
    register_theirs(schemes=["theirs", "theirs+tls"])
    assert type(connect("theirs+tls://host", {}, asynchronous=False)) is TheirCoordinator
    with pytest.raises(ValueError, match="ttl"):
        connect("theirs+more://host", {"ttl": 0}, asynchronous=False)


@pytest.mark.parametrize(
    ("clients", "options", "says"),
    [
        (["a.B"], {}, "needs a coordinator, an async_coordinator or both"),
        ([], {"coordinator": "a:B"}, "needs the class of a client, a scheme or both"),
        (["a-b"], {"coordinator": "a:B"}, "'a-b' is no such name"),
        (["a.B"], {"coordinator": "a.B"}, r"'a\.B' is no such name"),
        (["a.B"], {"coordinator": MemoryCoordinator}, "takes names, not <class"),
        ([TheirClient], {"coordinator": "a:B"}, "takes names, not <class"),
        ([], {"coordinator": "a:B", "schemes": ["a://"], "connect": "a:b"}, "'a://' is no such name"),
        ([], {"coordinator": "a:B", "schemes": "ab"}, r"write schemes=\['ab'\]"),
        ([], {"coordinator": "a:B", "schemes": ["a"]}, "schemes and connect= belong together"),
        (["a.B"], {"coordinator": "a:B", "connect": "a:b"}, "schemes and connect= belong together"),
        ([], {"coordinator": "a:B", "schemes": ["a"], "connect": "a.b"}, r"'a\.b' is no such name"),
        (["redis"], {"coordinator": "a:B"}, "'redis' is registered already, for fencing.redis.coordinator:Redis"),
        (
            ["a.B"],
            {"coordinator": "a:B", "schemes": ["sqlite"], "connect": "a:b"},
            "'sqlite' is registered already, for fencing.sql",
        ),
    ],
)
def test_a_wrong_registration(clients: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        register(*clients, **options)
    assert "a" not in registry._clients


def test_the_same_registration_may_be_repeated() -> None:
    for _ in range(2):
        register_theirs(schemes=["theirs"])


def test_another_package_need_not_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entry point is loaded when a client comes that nobody has registered."""
    (tmp_path / "theirs-1.dist-info").mkdir()
    (tmp_path / "theirs-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (tmp_path / "theirs-1.dist-info" / "entry_points.txt").write_text(
        "[fencing.coordinators]\ntheirs = their_registration\n"
    )
    (tmp_path / "their_registration.py").write_text(
        "from fencing.locks.registry import register\n"
        f"register({TheirClient.__module__!r}, coordinator='{MODULE}:TheirCoordinator', "
        f"schemes=['theirs'], connect='{MODULE}:connect')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "their_registration", raising=False)
    FencedLock(sqlalchemy.create_engine(f"sqlite:///{tmp_path}/locks.db"), "r")
    assert "their_registration" not in sys.modules, "ours need no look at other packages"
    assert type(FencedLock(TheirClient(), "r").coordinator) is TheirCoordinator  # type: ignore[arg-type]
    assert type(connect("theirs://host", {}, asynchronous=False)) is TheirCoordinator
    monkeypatch.delitem(sys.modules, "their_registration")
