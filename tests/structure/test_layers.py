"""Which package may import which, and what an import must not drag in."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("fencing", "storage_guards")


class Room(NamedTuple):
    """What a folder, or a file of the top level, may import.

    Args:
        ours: rooms and files of the two packages; its own room always.
        others: third-party packages. The standard library always.
    """

    ours: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


KERNEL = "fencing.kernel"
LOCKS = "fencing.locks"
BACKEND = (KERNEL, LOCKS, "fencing.coordinator", "fencing.coordinator_async")
REDIS_CALLS = ("fencing.redis.calls", "fencing.redis.keys", "fencing.redis.resp", "fencing.redis.scripts")
REDIS_CLIENT = (
    KERNEL,
    *REDIS_CALLS,
    "fencing.redis.connection_factory",
    "fencing.redis.quirks",
    "fencing.redis.sentinel",
)
SHARED = tuple(f"storage_guards.{name}" for name in ("blocks", "bounds", "continuity", "once", "sending"))  # by all
REDIS_CONNECTIONS = tuple(
    f"fencing.redis.{name}" for name in ("client", "client_async", "cluster.client", "cluster.client_async")
)
REDIS_THREADS = (*REDIS_CLIENT, "fencing.redis.connection", "fencing.redis.client")
REDIS_ASYNCIO = (*REDIS_CLIENT, "fencing.redis.connection_async", "fencing.redis.client_async")
REDIS_LISTENER = (
    *REDIS_CLIENT,
    *("fencing.redis.connection", "fencing.redis.waiters", "fencing.locks.waiting"),
)
CLUSTER_LISTENER = tuple(
    f"fencing.redis.{name}" for name in ("cluster.topology", "cluster.client", "cluster.subscriptions", "listener")
)
REDLOCK = ("fencing.redlock.scripts", "fencing.redlock.calls", "fencing.redlock.decisions")
ETCD_DATA = tuple(f"fencing.etcd.{name}" for name in ("calls", "layout", "leases", "waiters"))
ETCD_PLANS = tuple(f"fencing.etcd.{name}" for name in ("requests", "reading", "keeping", "place"))
ZOOKEEPER_DATA = tuple(f"fencing.zookeeper.{name}" for name in ("calls", "layout", "waiters"))
ZOOKEEPER_SESSION = tuple(
    f"fencing.zookeeper.{name}" for name in ("calls", "leftovers", "touches", "waiters", "session", "sessions")
)
HTTP_CLIENT = tuple(f"storage_guards.http.{name}" for name in ("base", "guard", "guard_async", "fenced"))

# A file is judged by the longest name here that is its own, or its folder's.
ROOMS = {
    "fencing.kernel": Room(),
    "fencing.locks": Room((KERNEL,)),
    "fencing.election": Room((KERNEL, LOCKS)),
    "fencing.coordinator": Room((KERNEL, LOCKS, "fencing.election")),
    "fencing.coordinator_async": Room((KERNEL, LOCKS, "fencing.election")),
    "fencing.memory": Room(BACKEND),
    "fencing.pauses": Room((KERNEL, LOCKS)),
    "fencing.sigterm": Room(BACKEND),
    "fencing.cli": Room((*BACKEND, "fencing", "storage_guards"), ("typer", "rich", "httpx2", "obstore", "sqlalchemy")),
    **{
        f"fencing.cli.doctor.{name}": Room((KERNEL, LOCKS, "fencing.cli", *ours), (client,))
        for name, ours, client in (
            ("redis", ("fencing.redis.keys", "fencing.redis.urls"), "redis"),
            ("redis_server", (), "redis"),
            ("redlock", (), "redis"),
            ("rights", (), "redis"),
            ("databases", ("fencing.sql", "storage_guards"), "sqlalchemy"),
            ("stores", ("storage_guards",), "obstore"),
            ("etcd", ("fencing.etcd.urls",), "httptools"),
            ("zookeeper", ("fencing.zookeeper.session", "fencing.zookeeper.urls"), "kazoo"),
        )
    },
    "fencing.contrib": Room(),
    "fencing.contrib.celery": Room((KERNEL, LOCKS), ("celery",)),
    "fencing.contrib.django": Room(
        (KERNEL, LOCKS, "fencing.coordinator", "fencing.sql.errors", *SHARED, "storage_guards.sql"), ("django",)
    ),
    "fencing.contrib.answers": Room((KERNEL, "storage_guards.http")),
    "fencing.contrib.flask": Room((KERNEL, "fencing.contrib.answers", "storage_guards.http"), ("flask",)),
    "fencing.contrib.starlette": Room((KERNEL, "fencing.contrib.answers"), ("starlette",)),
    "fencing.__main__": Room(("fencing.cli",)),
    "fencing.urls": Room((*BACKEND, "fencing.redis.urls", "fencing.redlock")),
    "fencing.redis": Room(BACKEND, ("redis",)),
    "fencing.redis.resp": Room((), ("redis", "hiredis")),
    "fencing.redis.keys": Room(REDIS_CALLS),
    "fencing.redis.scripts": Room(REDIS_CALLS),
    "fencing.redis.calls": Room(REDIS_CALLS),
    "fencing.redis.quirks": Room((), ("redis",)),
    "fencing.redis.sentinel": Room((KERNEL, "fencing.redis.connection", "fencing.redis.resp"), ("redis",)),
    "fencing.redis.connection_factory": Room(REDIS_CLIENT, ("redis",)),
    "fencing.redis.connection": Room(
        (KERNEL, "fencing.redis.foreign_connections", "fencing.redis.quirks", "fencing.redis.resp"), ("redis",)
    ),
    "fencing.redis.client": Room((*REDIS_CLIENT, "fencing.redis.connection"), ("redis",)),
    "fencing.redis.foreign_connections": Room((KERNEL, "fencing.redis.resp"), ("redis",)),
    "fencing.redis.asyncio_protocol": Room((*REDIS_CLIENT, "fencing.redis.foreign_connections"), ("redis",)),
    "fencing.redis.connection_async": Room((*REDIS_CLIENT, "fencing.redis.asyncio_protocol"), ("redis",)),
    "fencing.redis.client_async": Room((*REDIS_CLIENT, "fencing.redis.connection_async"), ("redis",)),
    "fencing.redis.urls": Room((KERNEL, "fencing.locks.urls"), ("redis",)),
    "fencing.redis.waiters": Room((KERNEL, "fencing.locks.waiting")),
    "fencing.redis.listener": Room((*REDIS_LISTENER, "fencing.redis.client"), ("redis",)),
    "fencing.redis.listener_async": Room(
        (
            *REDIS_LISTENER,
            "fencing.redis.asyncio_protocol",
            "fencing.redis.client_async",
            "fencing.redis.listener",
        ),
        ("redis",),
    ),
    "fencing.redis.cluster": Room(),
    "fencing.redis.cluster.topology": Room((KERNEL, "fencing.redis.keys"), ("redis",)),
    "fencing.redis.cluster.client": Room((*REDIS_THREADS, "fencing.redis.cluster.topology"), ("redis",)),
    "fencing.redis.cluster.client_async": Room((*REDIS_ASYNCIO, "fencing.redis.cluster.topology"), ("redis",)),
    "fencing.redis.cluster.subscriptions": Room(
        (*REDIS_CLIENT, "fencing.redis.cluster.topology", "fencing.redis.waiters"), ("redis",)
    ),
    "fencing.redis.cluster.listener": Room((*REDIS_LISTENER, *CLUSTER_LISTENER), ("redis",)),
    "fencing.redis.cluster.listener_async": Room(
        (
            *REDIS_LISTENER,
            *CLUSTER_LISTENER,
            "fencing.redis.cluster.client_async",
            "fencing.redis.asyncio_protocol",
            "fencing.redis.listener_async",
        ),
        ("redis",),
    ),
    "fencing.redis.plans": Room((KERNEL, LOCKS, *REDIS_CALLS, "fencing.redis.waiters", "fencing.redis.cluster.plans")),
    "fencing.redis.cluster.plans": Room((KERNEL, LOCKS, *REDIS_CALLS)),
    "fencing.redlock": Room((*BACKEND, *REDIS_CLIENT), ("redis",)),
    "fencing.redlock.scripts": Room(REDIS_CALLS),
    "fencing.redlock.calls": Room((KERNEL, *REDIS_CALLS, "fencing.redlock.scripts")),
    "fencing.redlock.decisions": Room((KERNEL,)),
    "fencing.redlock.nodes": Room((*REDIS_CLIENT, *REDLOCK)),
    "fencing.redlock.bundle": Room(
        (*REDIS_CLIENT, *REDLOCK, "fencing.redis.connection", "fencing.redlock.nodes"), ("redis",)
    ),
    "fencing.redlock.exchange": Room(
        (*REDIS_CLIENT, *REDLOCK, "fencing.redis.connection", "fencing.redlock.nodes", "fencing.redlock.bundle"),
        ("redis",),
    ),
    "fencing.redlock.client": Room(
        (*REDIS_CLIENT, *REDLOCK, "fencing.redlock.nodes", "fencing.redlock.bundle", "fencing.redlock.exchange"),
        ("redis",),
    ),
    "fencing.redlock.client_async": Room((*REDIS_ASYNCIO, *REDLOCK, "fencing.redlock.nodes"), ("redis",)),
    "fencing.redlock.plans": Room((KERNEL, LOCKS, *REDIS_CALLS, *REDLOCK)),
    "fencing.compat": Room((KERNEL, LOCKS), ("redis",)),
    "fencing.sql": Room((KERNEL,), ("sqlalchemy",)),
    "fencing.sql.plans": Room((KERNEL, LOCKS, "fencing.sql.table", "fencing.sql.waiters"), ()),
    "fencing.sql.coordinator": Room((*BACKEND, "fencing.sql"), ("sqlalchemy",)),
    "fencing.sql.coordinator_async": Room((*BACKEND, "fencing.sql"), ("sqlalchemy",)),
    "fencing.sql.listener": Room((KERNEL, "fencing.sql", "fencing.locks.waiting"), ("sqlalchemy",)),
    "fencing.sql.listener_async": Room((KERNEL, "fencing.sql", "fencing.locks.waiting"), ("sqlalchemy",)),
    "fencing.sql.urls": Room((KERNEL, "fencing.locks.urls"), ("sqlalchemy",)),
    "fencing.sql.waiters": Room((KERNEL, "fencing.locks.waiting")),
    "fencing.sql.notifications": Room(),
    "fencing.sql.errors": Room(),
    "fencing.etcd": Room((KERNEL, LOCKS), ("httptools",)),
    "fencing.etcd.calls": Room((KERNEL,)),
    "fencing.etcd.urls": Room((KERNEL, "fencing.locks.urls", "fencing.etcd.endpoints")),
    "fencing.etcd.layout": Room((KERNEL, "fencing.etcd.calls")),
    "fencing.etcd.leases": Room((KERNEL,)),
    "fencing.etcd.waiters": Room((KERNEL, "fencing.etcd.calls")),
    "fencing.etcd.requests": Room((KERNEL, LOCKS, *ETCD_DATA)),
    "fencing.etcd.reading": Room((KERNEL, LOCKS, *ETCD_DATA, "fencing.etcd.requests")),
    "fencing.etcd.keeping": Room((KERNEL, LOCKS, *ETCD_DATA, "fencing.etcd.reading")),
    "fencing.etcd.place": Room((KERNEL, LOCKS, *ETCD_DATA)),
    "fencing.etcd.plans": Room((KERNEL, LOCKS, *ETCD_DATA, *ETCD_PLANS)),
    "fencing.etcd.http": Room((), ("httptools",)),
    "fencing.etcd.endpoints": Room((KERNEL,)),
    "fencing.etcd.connection": Room((KERNEL, "fencing.etcd.endpoints", "fencing.etcd.http")),
    "fencing.etcd.connection_async": Room((KERNEL, "fencing.etcd.endpoints", "fencing.etcd.http")),
    "fencing.etcd.coordinator": Room((*BACKEND, "fencing.etcd")),
    "fencing.etcd.coordinator_async": Room((*BACKEND, "fencing.etcd")),
    "fencing.zookeeper": Room((KERNEL, LOCKS), ("kazoo",)),
    "fencing.zookeeper.calls": Room((), ("kazoo",)),
    "fencing.zookeeper.layout": Room((KERNEL,)),
    "fencing.zookeeper.leftovers": Room(("fencing.zookeeper.calls",)),
    "fencing.zookeeper.touches": Room(),
    "fencing.zookeeper.waiters": Room(),
    "fencing.zookeeper.requests": Room((KERNEL, LOCKS, *ZOOKEEPER_DATA)),
    "fencing.zookeeper.reading": Room((KERNEL, LOCKS, *ZOOKEEPER_DATA, "fencing.zookeeper.requests")),
    "fencing.zookeeper.place": Room((KERNEL, LOCKS, *ZOOKEEPER_DATA)),
    "fencing.zookeeper.keeping": Room(
        (KERNEL, LOCKS, *ZOOKEEPER_DATA, *(f"fencing.zookeeper.{name}" for name in ("reading", "place")))
    ),
    "fencing.zookeeper.plans": Room(
        (
            KERNEL,
            LOCKS,
            *ZOOKEEPER_DATA,
            *(f"fencing.zookeeper.{name}" for name in ("requests", "reading", "keeping", "place")),
        )
    ),
    "fencing.zookeeper.session": Room((KERNEL, "fencing.zookeeper.touches"), ("kazoo",)),
    "fencing.zookeeper.sessions": Room((KERNEL, *ZOOKEEPER_SESSION), ("kazoo",)),
    "fencing.zookeeper.client": Room((KERNEL, *ZOOKEEPER_SESSION)),
    "fencing.zookeeper.client_async": Room((KERNEL, *ZOOKEEPER_SESSION), ("kazoo",)),
    "fencing.zookeeper.coordinator": Room((*BACKEND, "fencing.zookeeper"), ("kazoo",)),
    "fencing.zookeeper.coordinator_async": Room((*BACKEND, "fencing.zookeeper"), ("kazoo",)),
    "fencing.testing": Room((*BACKEND, "fencing.memory")),
    "storage_guards.bounds": Room((KERNEL,)),
    "storage_guards.blocks": Room((KERNEL, "storage_guards.once")),
    "storage_guards.continuity": Room((KERNEL,)),
    "storage_guards.kept": Room((KERNEL, "storage_guards.once")),
    "storage_guards.once": Room((KERNEL,)),
    "storage_guards.sending": Room((KERNEL,)),
    "storage_guards.memory": Room((KERNEL, "storage_guards.blocks", "storage_guards.bounds", "storage_guards.once")),
    "storage_guards.testing": Room((KERNEL, "fencing.testing.contract"), ("pytest",)),
    "storage_guards.sql": Room((KERNEL, "fencing.sql.errors", *SHARED)),
    "storage_guards.sqlalchemy": Room((KERNEL, "fencing.sql", *SHARED, "storage_guards.sql"), ("sqlalchemy",)),
    "storage_guards.sqlalchemy.over_psycopg": Room(
        (KERNEL, "fencing.sql", "storage_guards.sql", "storage_guards.sqlalchemy", "storage_guards.psycopg"),
        ("sqlalchemy", "psycopg"),
    ),
    "storage_guards.psycopg": Room((KERNEL, "fencing.sql.errors", *SHARED, "storage_guards.sql"), ("psycopg",)),
    "storage_guards.objects": Room((KERNEL, *SHARED, "storage_guards.kept"), ("obstore",)),
    "storage_guards.objects.progress": Room(("storage_guards.objects",), ("rich", "tqdm")),
    "storage_guards.objects.staged_fsspec": Room(("storage_guards.objects",), ("fsspec",)),
    "storage_guards.objects.filesystem": Room(
        tuple(f"storage_guards.objects.{name}" for name in ("guard", "publication", "stream")), ("obstore", "fsspec")
    ),
    "storage_guards.redis": Room((*REDIS_CLIENT, *SHARED), ("redis",)),
    "storage_guards.redis.clients": Room(
        (*REDIS_CONNECTIONS, "fencing.redis.connection_factory"), ("redis",)
    ),  # no second client of a Cluster
    "storage_guards.files": Room((KERNEL, *SHARED, "storage_guards.kept")),
    "storage_guards.http": Room((KERNEL,)),
    **dict.fromkeys(
        HTTP_CLIENT,
        Room((KERNEL, "storage_guards.blocks", "storage_guards.bounds", "storage_guards.http"), ("httpx2",)),
    ),
}
FACES = ("fencing", "storage_guards")  # they name everything, and load it when it is used: see the tests below


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


FILES = {module_of(file): file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))}


@functools.cache
def nodes_of(module: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(FILES[module].read_text("utf-8"))))


@functools.cache
def imports_of(module: str) -> frozenset[str]:
    """The modules that a file imports, anywhere in the file, for types too."""
    found: set[str] = set()
    for node in nodes_of(module):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{module} imports relatively"
            assert not node.level, f"{module} imports relatively"
            for alias in node.names:  # "from fencing.locks import plans" names the module fencing.locks.plans
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in FILES else node.module)
    return frozenset(found)


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def room_of(module: str) -> str:
    return max((name for name in ROOMS if is_in(module, name)), key=len, default="no room")


@pytest.mark.parametrize("module", [module for module in FILES if module not in FACES])
def test_a_file_imports_only_what_its_room_may(module: str) -> None:
    room = room_of(module)
    assert room in ROOMS, f"{module} is in none of the rooms; give it one in ROOMS"
    for imported in imports_of(module):
        top = imported.partition(".")[0]
        if top in PACKAGES:
            allowed = is_in(imported, room) or any(is_in(imported, name) for name in ROOMS[room].ours)
        else:
            allowed = top in sys.stdlib_module_names or top in ROOMS[room].others
        assert allowed, f"{module} imports {imported}, which {room} may not"


CHOOSERS = ("fencing.sql.dialects", "storage_guards.sqlalchemy.base")


@pytest.mark.parametrize("module", [module for module in FILES if module not in CHOOSERS])
def test_a_databases_name_is_asked_in_its_own_file_alone(module: str) -> None:
    """What differs is a method there: one finds all of a database in one file, and adds one with another."""
    for node in nodes_of(module):
        if isinstance(node, ast.Attribute) and node.attr in ("name", "driver"):
            assert not ast.unparse(node.value).endswith("dialect"), f"{module} asks for {ast.unparse(node)}"


def test_every_room_is_there() -> None:
    for room in ROOMS:
        assert any(is_in(module, room) for module in FILES), f"there is no {room}"


def test_there_is_no_import_circle() -> None:
    left = {module: {each for each in imports_of(module) if each in FILES} for module in FILES if module not in FACES}
    while free := [module for module, needs in left.items() if not needs & left.keys()]:
        for module in free:
            del left[module]
    assert not left, f"these import each other: {left}"


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("imported", "absent"),
    [
        ("import storage_guards.sqlalchemy.guard, fencing.kernel.fence", {"redis"}),
        ("from storage_guards import SQLAlchemyGuard; from fencing import Fence, StaleFence", {"redis"}),
        ("from storage_guards import MemoryGuard", {"sqlalchemy", "obstore"}),
        ("from storage_guards import ObjectStoreGuard", {"sqlalchemy", "storage_guards.objects.guard_async"}),
        ("from storage_guards import AsyncObjectStoreGuard", {"storage_guards.objects.guard"}),
        ("from storage_guards import PsycopgGuard, AsyncPsycopgGuard", {"sqlalchemy", "redis", "psycopg_pool"}),
        ("import storage_guards.sql.enforcement", {"psycopg", "sqlalchemy"}),
        ("import storage_guards.sql.operations_async, storage_guards.sql.transaction", {"sqlalchemy"}),
        ("import storage_guards.sqlalchemy.alembic", {"alembic"}),
        ("from storage_guards import FencingMiddleware, WSGIFencingMiddleware; import storage_guards.http", {"httpx2"}),
        ("import storage_guards.http", {"asyncio"}),
        ("from storage_guards import RedisGuard", {"sqlalchemy", "httpx2", "storage_guards.redis.guard_async"}),
        ("from storage_guards import FileGuard", {"redis", "sqlalchemy", "obstore"}),
        ("from fencing import RedisCoordinator", {"sqlalchemy", "fencing.pauses"}),
        (
            "from fencing import RedisCoordinator, FencedLock",
            {"fencing.redis.cluster.client", "fencing.locks.lock_async"},
        ),
        ("from fencing import AsyncRedisCoordinator", {"fencing.redis.cluster.client_async", "fencing.locks.lock"}),
        ("from fencing import SQLCoordinator", {"redis", "psycopg", "sqlalchemy.ext.asyncio"}),
        ("from fencing import RedlockCoordinator", {"sqlalchemy"}),
        ("from fencing import MemoryCoordinator, FencedLock", {"redis"}),
        ("import fencing.testing, storage_guards.testing", {"redis"}),
        ("import fencing, storage_guards", {"asyncio"}),
        ("import fencing.compat", {"redis", "asyncio"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_import_brings_only_what_it_needs(imported: str, absent: set[str]) -> None:
    assert run(f"import sys; {imported}; print({absent!r} & sys.modules.keys())") == "set()\n"


LOADED_FOR_A_LOCK_ON_REDIS = {
    "fencing.kernel": "admission effects errors fence guard interruptions lending loop_thread opening process quirks"
    " retry timer waking workers",
    "fencing.locks": "any_slot arguments backend callbacks capabilities causes clients coordinator give_back grid"
    " hold hold_several holding lanes lease listing lock locked long_waits plans pulse reclaim reentrant renewal"
    " settings several signatures slots ttl waiting",
    "fencing.redis": "arguments calls client cluster connection connection_factory coordinator foreign_connections keys"
    " listener plans quirks resp scripts sentinel waiters",
    "fencing.redis.cluster": "plans",  # RedisPlans choose among them and their own
}
"""The parts of what one lock does: all modules but the other side's, the other backends', and a Cluster's clients."""


def test_the_modules_that_a_lock_on_redis_loads() -> None:
    """They take a quarter of the time that ``import redis`` takes. A new one is added here if each lock needs it."""
    names = {f"{folder}.{name}" for folder, names in LOADED_FOR_A_LOCK_ON_REDIS.items() for name in names.split()}
    imports = "import sys, redis; before = {*sys.modules}; from fencing import RedisCoordinator"
    loaded = set(run(f"{imports}; print(*{{*sys.modules}} - before)").split())
    ours = {name for name in loaded if name.startswith("fencing")}
    assert ours == {*names, "fencing", "fencing.coordinator", *LOADED_FOR_A_LOCK_ON_REDIS}
    others = {name for name in loaded - ours if not name.startswith("importlib.")}
    assert not others, "redis-py loads what is needed beside them"


@pytest.mark.parametrize(
    ("guard", "absent", "extra"),
    [
        ("SQLAlchemyGuard", "sqlalchemy", "sqlalchemy"),
        ("AsyncPsycopgGuard", "psycopg", "psycopg"),
        ("ObjectStoreGuard", "obstore", "objectstore"),
        ("HTTPGuard", "httpx2", "http"),
    ],
)
def test_a_guard_whose_driver_is_not_installed_names_the_extra(guard: str, absent: str, extra: str) -> None:
    code = f"""
import sys

class Absent:
    def find_spec(name, *_):
        if name == {absent!r}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Absent)
try:
    from storage_guards import {guard}
except ModuleNotFoundError as error:
    print(error.name, error)
"""
    said = run(code)
    assert said.startswith(f"{absent} {guard} needs {absent}, which is not installed")
    assert f"the extra [{extra}]" in said


def test_the_public_names_are_all_there() -> None:
    code = "import fencing; print(len([getattr(fencing, name) for name in fencing.__all__]), 'Fence' in dir(fencing))"
    count, listed = run(code).split()
    assert int(count) >= 20
    assert listed == "True"
    assert run("import fencing\ntry: fencing.nothing\nexcept AttributeError as e: print(e)").startswith("module")
