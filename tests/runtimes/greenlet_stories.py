"""A program whose threads are greenlets. It plays one story, and prints its name if all is right.

Arguments: gevent or eventlet; first (before the library is imported) or late; the story; the URLs of the
servers, with commas between them; that of a database.
"""

# ruff: noqa: E402 - the threads are replaced first

from __future__ import annotations

import faulthandler
import os
import sys
from typing import Any

LIBRARY, WHEN, STORY, SERVERS, DATABASE = sys.argv[1:]
REDIS = SERVERS.split(",")[0]


def replace_threads() -> None:
    """Let greenlets take the place of threads."""
    if LIBRARY == "gevent":
        from gevent import monkey

        monkey.patch_all()
    else:
        import eventlet

        eventlet.monkey_patch()
        sys.modules["trio"] = None  # type: ignore[assignment] # httpcore2 imports it, which fails with these sockets


if WHEN == "first":
    replace_threads()

import asyncio
import importlib
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from socketserver import ThreadingMixIn
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import httpx2
import redis
import redis.asyncio
import redis.sentinel
from kazoo.client import KazooClient
from obstore.store import MemoryStore
from psycopg_pool import ConnectionPool
from sqlalchemy import create_engine, text

from fencing import (
    AsyncRedisCoordinator,
    AsyncZooKeeperCoordinator,
    CoordinatorUnavailable,
    LeaseLost,
    MemoryCoordinator,
    NotAcquired,
    RedisCoordinator,
    RedlockCoordinator,
    SQLCoordinator,
    StaleFence,
    ZooKeeperCoordinator,
    on_sigterm,
)
from fencing.compat import RedisPyLock
from fencing.redis.keys import keys_of
from storage_guards import (
    FileGuard,
    HTTPGuard,
    ObjectStoreGuard,
    PsycopgGuard,
    RedisGuard,
    SQLAlchemyGuard,
    WSGIFencingMiddleware,
    fenced,
)
from storage_guards.http import fence_for
from tests.support.etcd import EtcdSide
from tests.support.refusals import refused_as_held
from tests.support.tls import client_context
from tests.support.zookeeper import ZooKeeperSide

EARLY = ssl.create_default_context()

if WHEN == "late":
    replace_threads()

TTL = 3.0


def wait_until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def together(count: int, function: Callable[[int], object]) -> None:
    """Call a function in so many greenlets, and raise what one of them raises."""
    errors: list[BaseException] = []

    def call(number: int) -> None:
        try:
            function(number)
        except BaseException as error:  # noqa: BLE001 - it is raised below
            errors.append(error)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def renewed(lease: Any) -> None:
    """Wait until the lease has been renewed, and has lasted for longer than a ttl."""
    ends, renewals, before = time.monotonic() + TTL, 0, lease.remaining()
    while renewals == 0 or time.monotonic() < ends:
        time.sleep(0.01)
        left = lease.remaining()
        renewals, before = renewals + (left > before), left
        lease.ensure_held()


def play_in_order(coordinator: Any, queued: Callable[[], int]) -> None:
    """Waiters get the lock in the order in which they came."""
    got, lease, threads = list[int](), coordinator.acquire("turns", timeout=60), []

    def take(number: int) -> None:
        with coordinator.hold("turns", timeout=60):
            got.append(number)

    for number in range(6):
        threads.append(threading.Thread(target=take, args=(number,)))
        threads[-1].start()
        wait_until(lambda: queued() == len(threads))
    lease.release()
    for thread in threads:
        thread.join()
    assert got == list(range(6)), got


def play(coordinator: Any) -> None:
    """What any coordinator does: no lost update, renewal, re-entry, and the loss of a lease."""
    total = 0

    def add(_: int) -> None:
        nonlocal total
        with coordinator.hold("total", timeout=60):
            read = total
            time.sleep(0.05)
            total = read + 1

    together(8, add)
    assert total == 8

    with coordinator.hold("long", timeout=60) as lease:
        renewed(lease)
        refused_as_held(lambda: coordinator.acquire("long", timeout=0.05))

    lock, entered = coordinator.lock("nested").reentrant(), list[str]()

    def enter(_: int) -> None:
        try:
            with lock.hold(timeout=0.1):
                entered.append("it is in")
        except (NotAcquired, CoordinatorUnavailable, RuntimeError):
            entered.append("refused")

    with lock.hold(timeout=60) as outer:
        with lock.hold(timeout=60) as inner:
            assert inner.fence == outer.fence
        together(1, enter)
    assert entered == ["refused"]

    lost, losses = coordinator.acquire("lost", timeout=60), list[LeaseLost]()
    event = lost.lost
    lost.on_lost(losses.append)
    coordinator.force_release("lost")
    assert event.wait(60)
    wait_until(lambda: losses)
    coordinator.close()


def redis_client() -> Any:
    return redis.Redis.from_url(REDIS)


def memory() -> None:
    play(MemoryCoordinator(ttl=TTL))


def redis_() -> None:
    coordinator, client = RedisCoordinator(redis_client(), ttl=TTL), redis_client()
    play_in_order(coordinator, lambda: client.zcard(keys_of("turns").queue))
    play(coordinator)


def sentinel() -> None:
    addresses = [(url.hostname, url.port) for url in map(urlsplit, SERVERS.split(","))]
    kind: Any = redis.sentinel.Sentinel
    made = kind(addresses)
    coordinator, client = RedisCoordinator(made.master_for("shop"), ttl=TTL), made.master_for("shop")
    play_in_order(coordinator, lambda: client.zcard(keys_of("turns").queue))
    play(coordinator)


def cluster() -> None:
    made: Any = redis.RedisCluster
    coordinator, client = RedisCoordinator(made.from_url(REDIS), ttl=TTL), made.from_url(REDIS)
    play_in_order(coordinator, lambda: client.zcard(keys_of("turns").queue))
    play(coordinator)


def redlock() -> None:
    play(RedlockCoordinator([redis.Redis.from_url(url) for url in SERVERS.split(",")], ttl=TTL))


def etcd(**options: Any) -> None:
    side = EtcdSide(False, [REDIS])
    reader = side.coordinator(**options)
    play_in_order(side.coordinator(ttl=TTL, **options), lambda: len(side.keys(reader, "turns")) - 1)
    play(side.coordinator(ttl=TTL, **options))


def etcd_tls() -> None:
    """With certificates of both sides. A context that was made before the threads were replaced is refused."""
    if WHEN == "late":
        try:
            etcd(tls=EARLY)
        except TypeError as error:
            assert "patch first" in str(error), error
        else:
            raise AssertionError("its sockets stop all greenlets")
    etcd(tls=client_context(Path(SERVERS.split(",")[1])))


def handler_of_kazoo() -> Any:
    """Return kazoo's handler for this library."""
    module = importlib.import_module(f"kazoo.handlers.{LIBRARY}")
    return getattr(module, f"Sequential{LIBRARY.capitalize()}Handler")()


def zookeeper(handler: Callable[[], Any] = lambda: None) -> None:
    """With kazoo's default handler, whose threads are greenlets here. With eventlet that one never connects."""
    if LIBRARY == "eventlet" and handler() is None:
        for kind in (ZooKeeperCoordinator, AsyncZooKeeperCoordinator):
            try:
                kind(KazooClient(REDIS))
            except TypeError as error:
                assert "SequentialEventletHandler" in str(error), error
            else:
                raise AssertionError("it would never connect")
        return
    side = ZooKeeperSide(False, REDIS, handler)

    def coordinator() -> Any:
        return side.coordinator(ttl=TTL)

    play_in_order(coordinator(), lambda: side.waiting("turns"))
    with side.coordinator().hold("alone", timeout=60):  # another session
        refused_as_held(lambda: coordinator().acquire("alone", timeout=0.05))
    play(coordinator())
    side.close()


def zookeeper_handler() -> None:
    zookeeper(handler_of_kazoo)


def sql() -> None:
    coordinator = SQLCoordinator(create_engine(DATABASE), ttl=TTL)
    coordinator.create_tables()
    play(coordinator)


def mariadb() -> None:
    """Locks in MariaDB, and increments there."""
    engine = create_engine(DATABASE)
    coordinator, guard = SQLCoordinator(engine, ttl=TTL), SQLAlchemyGuard(engine)
    coordinator.create_tables()
    guard.create_tables()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE totals (total int)"))
        connection.execute(text("INSERT INTO totals VALUES (0)"))

    def add(_: int) -> None:
        with coordinator.hold("a", timeout=60) as lease:
            guard.claim(lease)
            with guard.begin(lease) as connection:
                read = connection.execute(text("SELECT total FROM totals")).scalar_one()
                time.sleep(0.01)
                connection.execute(text("UPDATE totals SET total = :t"), {"t": read + 1})

    together(6, add)
    with engine.begin() as connection:
        assert connection.execute(text("SELECT total FROM totals")).scalar_one() == 6
    play(coordinator)
    engine.dispose()


def guards() -> None:
    """Increments through each guard."""
    engine = create_engine(DATABASE)
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE totals (name text PRIMARY KEY, total int)"))
        connection.execute(text("INSERT INTO totals VALUES ('a', 0), ('b', 0)"))
    first = SQLAlchemyGuard(engine)
    first.create_tables()
    in_redis = RedisGuard(redis_client())
    with ExitStack() as stack, ConnectionPool(url, min_size=1, max_size=4) as pool:
        files = FileGuard(stack.enter_context(TemporaryDirectory()))
        second: Any = PsycopgGuard(pool)
        coordinator = RedisCoordinator(redis_client(), ttl=TTL)

        def add(_: int) -> None:
            with coordinator.hold("a", timeout=60) as lease:
                first.claim(lease)
                with first.begin(lease) as connection:
                    read = connection.execute(text("SELECT total FROM totals WHERE name = 'a'")).scalar_one()
                    time.sleep(0.01)
                    connection.execute(text("UPDATE totals SET total = :t WHERE name = 'a'"), {"t": read + 1})
            with coordinator.hold("b", timeout=60) as lease:
                second.claim(lease)
                with second.begin(lease) as connection:
                    (read,) = connection.execute("SELECT total FROM totals WHERE name = 'b'").fetchone()
                    time.sleep(0.01)
                    connection.execute("UPDATE totals SET total = %s WHERE name = 'b'", [read + 1])
            with coordinator.hold("c", timeout=60) as lease:
                in_redis.claim(lease)
                files.claim(lease)
                files.write(lease, str(int(files.read("c") or b"0") + 1).encode())

        together(6, add)
        with engine.begin() as connection:
            rows = connection.execute(text("SELECT total FROM totals ORDER BY name")).scalars().all()
        assert rows == [6, 6], rows
        assert files.read("c") == b"6"
        assert in_redis.mark("c") is not None
    engine.dispose()


def late_holder() -> None:
    """A holder is paused in its transaction; the next one claims meanwhile, and waits at the database."""
    engine = create_engine(DATABASE)
    guard = SQLAlchemyGuard(engine)
    guard.create_tables()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE late (total int)"))
        connection.execute(text("INSERT INTO late VALUES (100)"))
    coordinator, said = RedisCoordinator(redis_client(), ttl=TTL, guards=[guard]), list[str]()

    def pause(_: int) -> None:
        lease = coordinator.acquire("late", timeout=60)
        guard.claim(lease)
        fence = lease.fence
        coordinator.force_release("late")
        said.append("released")
        wait_until(lambda: "claimed" in said)
        try:
            with guard.begin(fence) as connection:
                connection.execute(text("UPDATE late SET total = 110"))
        except StaleFence:
            said.append("refused")

    def follow(_: int) -> None:
        wait_until(lambda: "released" in said)
        with coordinator.hold("late", timeout=60) as lease:
            said.append("claimed")
            wait_until(lambda: "refused" in said)
            with guard.begin(lease) as connection:
                connection.execute(text("UPDATE late SET total = total + 5"))

    together(2, lambda number: (pause, follow)[number](number))
    with engine.begin() as connection:
        assert connection.execute(text("SELECT total FROM late")).scalar_one() == 105
    engine.dispose()


class _ThreadingServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None: ...


@contextmanager
def service(engine: Any, guard: SQLAlchemyGuard) -> Iterator[str]:
    """A guarded service in greenlets of this process: GET reads the total, PUT writes it."""

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        if environ["REQUEST_METHOD"] == "GET":
            with engine.begin() as connection:
                body = str(connection.execute(text("SELECT total FROM served")).scalar_one()).encode()
        else:
            body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
            with guard.begin(fence_for(environ, "served")) as connection:
                time.sleep(0.01)
                connection.execute(text("UPDATE served SET total = :t"), {"t": int(body)})
        start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
        return [body]

    wrapped: Any = WSGIFencingMiddleware(app, guard)
    with make_server("127.0.0.1", 0, wrapped, server_class=_ThreadingServer, handler_class=_Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def http() -> None:
    """Increments over HTTP, with client and service in greenlets; each greenlet sends its own fence."""
    engine = create_engine(DATABASE)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE served (total int)"))
        connection.execute(text("INSERT INTO served VALUES (0)"))
    at_service = SQLAlchemyGuard(engine)
    at_service.create_tables()
    with service(engine, at_service) as url, httpx2.Client(base_url=url, timeout=60) as client:
        guard: Any = HTTPGuard("/fencing/claims", client)
        coordinator = RedisCoordinator(redis_client(), ttl=TTL, guards=[guard])

        def add(_: int) -> None:
            with coordinator.hold("served", timeout=60) as lease, fenced(client, lease):
                read = int(client.get("/").text)
                client.put("/", content=b"%d" % (read + 1)).raise_for_status()

        together(6, add)
        assert client.get("/").text == "6"

        late = coordinator.acquire("served", timeout=60)
        guard.claim(late)
        fence = late.fence
        coordinator.force_release("served")
        with coordinator.hold("served", timeout=60):
            try:
                with fenced(client, fence):
                    client.put("/", content=b"0")
            except StaleFence:
                pass
            else:
                raise AssertionError("a late holder wrote")
        assert client.get("/").text == "6"
    engine.dispose()


def compat() -> None:
    """One lock object of redis-py's interface for all greenlets: each has its own token."""
    client, total = redis_client(), 0
    lock: Any = RedisPyLock(client, "shared", timeout=TTL)

    def add(_: int) -> None:
        nonlocal total
        with lock:
            read = total
            time.sleep(0.02)
            total = read + 1

    together(6, add)
    assert total == 6
    assert lock.acquire()
    owned = []
    together(1, lambda _: owned.append(lock.local.token))
    assert owned == [None]
    lock.release()


def async_lease() -> None:
    """asyncio in one greenlet, and the loop that renews in another."""

    async def main() -> None:
        client = redis.asyncio.Redis.from_url(REDIS)
        coordinator, total = AsyncRedisCoordinator(client, ttl=TTL), 0

        async def add() -> None:
            nonlocal total
            async with coordinator.hold("total", timeout=60):
                read = total
                await asyncio.sleep(0.02)
                total = read + 1

        await asyncio.gather(*[add() for _ in range(6)])
        assert total == 6
        async with coordinator.hold("long", timeout=60) as lease:
            await asyncio.sleep(1.3 * TTL)
            lease.ensure_held()
        await coordinator.close()
        await client.aclose()

    asyncio.run(main())


def sigterm() -> None:
    """A process that is told to end: its leader resigns, and the handler of before is called."""
    handled = list[int]()
    signal.signal(signal.SIGTERM, lambda number, frame: handled.append(number))
    coordinator = RedisCoordinator(redis_client(), ttl=600)
    other = RedisCoordinator(redis_client())
    election, led, errors = coordinator.election("leader"), list[int](), list[object]()
    sys.excepthook = lambda *error: errors.append(error)
    on_sigterm(coordinator)

    def lead(lease: Any) -> None:
        led.append(lease.fence.number)
        while not (election.stopped or lease.lost.wait(0.01)):
            pass

    leading = threading.Thread(target=election.run, args=(lead,))
    leading.start()
    wait_until(lambda: led)
    os.kill(os.getpid(), signal.SIGTERM)
    wait_until(lambda: handled)
    leading.join(60)
    assert not leading.is_alive()
    other.acquire("leader", timeout=60).release()
    assert not errors, errors
    coordinator.close()
    other.close()


def objects() -> None:
    """The loop of the object-store guard is not that of other greenlets."""
    guard = ObjectStoreGuard(MemoryStore())
    coordinator = MemoryCoordinator(ttl=TTL)

    def add(_: int) -> None:
        with coordinator.hold("total", timeout=60) as lease:
            guard.claim(lease)
            found = guard.get("total")
            guard.write(lease, "total", str(1 + (0 if found is None else int(found.data))).encode())

    together(4, add)
    found = guard.get("total")
    assert found is not None
    assert found.data == b"4"

    async def wait() -> str:
        await asyncio.sleep(0.01)
        return "waited"

    assert asyncio.run(wait()) == "waited"


def limits() -> None:
    """Time limits of the library's own, and greenlets that are killed: no lock stays taken."""
    module: Any = __import__(LIBRARY)
    coordinator = RedisCoordinator(redis_client(), ttl=TTL)
    first = coordinator.acquire("limited", timeout=60)
    try:
        with module.Timeout(0.3):
            coordinator.acquire("limited", timeout=60)
    except module.Timeout:
        pass
    else:
        raise AssertionError("it was granted twice")
    for _ in range(5):
        waiter = module.spawn(coordinator.acquire, "limited", 60)
        time.sleep(0.05)
        waiter.kill()
    first.release()
    for number in range(50):  # at any step
        waiter = module.spawn(coordinator.acquire, "limited", 60)
        time.sleep(number * 0.00005)
        waiter.kill()
        del waiter
    coordinator.acquire("limited", timeout=60).release()

    def hold() -> None:
        with coordinator.hold("limited", timeout=60):
            time.sleep(3600)

    holder = module.spawn(hold)
    wait_until(lambda: coordinator.holder("limited") is not None)
    holder.kill()
    wait_until(lambda: coordinator.holder("limited") is None)


def threadpool() -> None:
    """A lock on Redis is refused in gevent's threadpool, before anything is taken, and works on in greenlets."""
    import gevent.threadpool

    coordinator, pool = RedisCoordinator(redis_client(), ttl=TTL), gevent.threadpool.ThreadPool(2)

    def refused(_: int) -> str:
        try:
            coordinator.acquire("pooled", timeout=1)
        except RuntimeError as error:
            return str(error)
        raise AssertionError("it was granted")

    for used in (False, True):
        for call in (refused, lambda _: str(gevent.spawn(refused, 0).get())):  # also in a greenlet of that thread
            assert "give the threadpool the computation alone" in pool.apply(call, (0,)), used
        assert coordinator.holder("pooled") is None
        with coordinator.hold("pooled", timeout=60):
            assert pool.apply(lambda: "computed") == "computed"
    memory_ = MemoryCoordinator(ttl=TTL)
    pool.apply(lambda: memory_.acquire("pooled", timeout=1).release())


if __name__ == "__main__":
    faulthandler.dump_traceback_later(100, exit=True)
    globals()["redis_" if STORY == "redis" else STORY]()
    print(f"{STORY}: played", flush=True)
    os._exit(0)
