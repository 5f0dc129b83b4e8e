"""The proxy: what it passes, what it loses, and what the client can tell."""

import fcntl
import gc
import socket
import struct
import termios
import threading
import time
from typing import Any

import psycopg
import pytest
import redis

from examples.servers import PostgresServer, RedisServer
from examples.servers.local import free_port
from tests.support import wait_until
from tests.support.fixtures import ProxyFactory
from tests.support.servers import Proxy


@pytest.fixture
def redis_proxy(proxy: ProxyFactory, any_redis: RedisServer) -> Proxy:
    return proxy(any_redis)


@pytest.fixture
def through(any_redis: RedisServer, redis_proxy: Proxy) -> redis.Redis:
    return redis.Redis.from_url(redis_proxy.url(any_redis.url), socket_timeout=60, retry=None)


def unacknowledged(client: socket.socket) -> int:
    """How many bytes the peer's kernel has not got yet."""
    return int(struct.unpack("i", fcntl.ioctl(client, termios.TIOCOUTQ, b"    "))[0])


def test_a_lost_reply_was_carried_out(any_redis: RedisServer, redis_proxy: Proxy, through: redis.Redis) -> None:
    loss = redis_proxy.drop_reply_when(lambda request: b"INCR" in request)
    assert through.ping()
    assert loss.fired == 0
    with pytest.raises(redis.ConnectionError):
        through.incr("counter")
    assert loss.fired == 1
    assert through.incr("counter") == 2
    assert loss.fired == 1


def test_a_lost_request_was_not(redis_proxy: Proxy, through: redis.Redis) -> None:
    loss = redis_proxy.drop_request_when(lambda request: b"INCR" in request, times=2)
    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            through.incr("counter")
    assert loss.wait(60, times=2)
    assert through.incr("counter") == 1


def test_a_large_request_is_seen_whole(any_redis: RedisServer, redis_proxy: Proxy, through: redis.Redis) -> None:
    value = b"x" * 1_000_000
    loss = redis_proxy.drop_reply_when(lambda request: b"SET" in request and request.endswith(b"x\r\n"))
    with pytest.raises(redis.ConnectionError):
        through.set("large", value)
    assert loss.fired == 1
    with any_redis.client() as client:
        assert client.get("large") == value


def test_silence_delays(any_redis: RedisServer, redis_proxy: Proxy, through: redis.Redis) -> None:
    through.ping()
    redis_proxy.silence()
    late = threading.Thread(target=through.incr, args=("counter",))
    late.start()
    hasty = redis.Redis.from_url(redis_proxy.url(any_redis.url), socket_timeout=0.1, retry=None)
    with pytest.raises(redis.TimeoutError):
        hasty.ping()
    hasty.close()
    with any_redis.client() as client:
        assert client.get("counter") is None
        redis_proxy.restore()
        late.join(60)
        assert client.get("counter") == b"1"


def test_a_held_reply_arrives_late(any_redis: RedisServer, redis_proxy: Proxy, through: redis.Redis) -> None:
    through.ping()
    hold = redis_proxy.hold_reply_when(lambda request: b"INCR" in request)
    replies: list[object] = []
    late = threading.Thread(target=lambda: replies.append(through.incr("counter")))
    late.start()
    assert hold.wait(60)
    with any_redis.client() as client:
        wait_until(lambda: client.get("counter") == b"1")
    assert replies == []
    redis_proxy.restore()
    late.join(60)
    assert replies == [1]


@pytest.mark.parametrize("reset", [False, True])
def test_what_a_stalled_connection_sent_is_delivered_in_order_after_its_client_has_closed_it(
    any_redis: RedisServer, redis_proxy: Proxy, through: redis.Redis, reset: bool
) -> None:
    stalled = redis_proxy.stall_connection_when(lambda request: b"first" in request)
    address = (redis_proxy.host, redis_proxy.port)
    client = socket.create_connection(address)
    client.sendall(b"PING\r\n")
    assert client.recv(100) == b"+PONG\r\n"
    client.sendall(b"RPUSH list first\r\n")
    assert stalled.wait(60)
    client.sendall(b"RPUSH list second\r\nLLEN list\r\n")
    if reset:
        wait_until(lambda: unacknowledged(client) == 0)  # else the reset takes back what is still under way
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    assert through.rpush("list", "newer") == 1
    with any_redis.client() as direct:
        assert stalled.deliver() is True
        assert direct.lrange("list", 0, -1) == [b"newer", b"first", b"second"]
        assert stalled.deliver() is True, "it was delivered before"
        assert direct.llen("list") == 3
    wait_until(lambda: redis_proxy.connections == 1)


def test_a_delivery_ends_the_connection_behind_what_was_held(redis_proxy: Proxy) -> None:
    stalled = redis_proxy.stall_connection_when(lambda request: b"INCR" in request)
    with socket.create_connection((redis_proxy.host, redis_proxy.port)) as client, client.makefile("rb") as replies:
        client.sendall(b"INCR counter\r\n")
        assert stalled.wait(60)
        stalled.deliver()
        assert replies.read() == b":1\r\n"


def test_a_stalled_connection_breaks_off_behind_a_request(redis_proxy: Proxy, through: redis.Redis) -> None:
    stalled = redis_proxy.stall_connection_when(
        lambda request: b"INCR" in request, cut_when=lambda held: held.count(b"INCR") == 2
    )
    with socket.create_connection((redis_proxy.host, redis_proxy.port)) as client:
        client.sendall(b"INCR counter\r\n")
        assert stalled.wait(60)
        client.sendall(b"INCR counter\r\n")
        assert client.recv(100) == b""
    assert through.incr("counter") == 1
    stalled.deliver()
    assert through.incr("counter") == 4


def test_a_delivery_of_nothing_calls_the_loss_off(redis_proxy: Proxy, through: redis.Redis) -> None:
    stalled = redis_proxy.stall_connection_when(lambda request: b"PING" in request)
    assert stalled.deliver() is False
    assert through.ping()
    assert stalled.fired == 0


def test_a_delivery_waits_for_the_server(
    proxy: ProxyFactory, postgres_server: PostgresServer, postgres_url: str
) -> None:
    url = postgres_url.replace("+psycopg", "")
    with psycopg.connect(url, autocommit=True) as direct:
        direct.execute("CREATE TABLE entries (n int)")
        between = proxy(postgres_server)
        connection = psycopg.connect(between.url(url), autocommit=True)
        stalled = between.stall_connection_when(lambda request: b"INSERT" in request)
        connection.pgconn.send_query(b"INSERT INTO entries SELECT 1 FROM pg_sleep(0.1)")
        assert stalled.wait(60)
        connection.close()
        assert direct.execute("SELECT n FROM entries").fetchall() == []
        with pytest.raises(TimeoutError):
            stalled.deliver(0.001)
        stalled.deliver()
        assert direct.execute("SELECT n FROM entries").fetchall() == [(1,)]


@pytest.mark.parametrize("direction", ["requests", "replies"])
def test_a_dripping_peer_passes_one_byte_at_a_time(redis_proxy: Proxy, direction: str) -> None:
    redis_proxy.drip(**{direction: 0.002})
    with socket.create_connection((redis_proxy.host, redis_proxy.port)) as client:
        client.settimeout(60)
        began = time.monotonic()
        client.sendall(b"PING\r\n")
        pieces = [client.recv(100)]
        while pieces[-1][-1:] != b"\n":
            pieces.append(client.recv(100))
        assert b"".join(pieces) == b"+PONG\r\n"
        assert time.monotonic() - began >= 5 * 0.002  # after each byte but the last
        redis_proxy.restore()
        client.sendall(b"PING\r\n")
        assert client.recv(100) == b"+PONG\r\n"


def test_refuse_and_restore(redis_proxy: Proxy, through: redis.Redis) -> None:
    through.ping()
    redis_proxy.refuse()
    with pytest.raises(redis.ConnectionError):
        through.ping()
    redis_proxy.restore()
    assert through.ping()
    through.close()
    wait_until(lambda: redis_proxy.connections == 0)


def test_a_server_that_is_not_there_yet_is_asked_again() -> None:
    port = free_port()
    with Proxy("127.0.0.1", port, patience=60) as proxy, socket.create_connection((proxy.host, proxy.port)) as client:
        wait_until(lambda: proxy.connections == 1)
        with socket.create_server(("127.0.0.1", port)) as server:
            served, _ = server.accept()
            with served:
                served.sendall(b"here")
                assert client.recv(100) == b"here"


def test_close_raises_the_error_of_a_predicate(any_redis: RedisServer) -> None:
    proxy = Proxy(any_redis.host, any_redis.port)
    proxy.drop_reply_when(lambda request: bool(1 / 0))
    with redis.Redis.from_url(proxy.url(any_redis.url), retry=None) as client, pytest.raises(redis.ConnectionError):
        client.ping()
    with pytest.raises(ZeroDivisionError):
        proxy.close()
    proxy.close()  # once is enough, twice does no harm


def test_a_connection_that_comes_while_it_is_closed_is_closed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left to the garbage collector warns, and a warning fails the test."""
    proxy = Proxy("127.0.0.1", 1)
    connecting, closing = threading.Event(), threading.Event()
    call_soon = proxy._loop.call_soon_threadsafe

    def connect() -> None:
        """In the loop's thread: the connection, and the request to close, are there when its turn ends."""
        client.connect((proxy.host, proxy.port))
        connecting.set()
        assert closing.wait(30)

    def close(*arguments: Any) -> None:
        call_soon(*arguments)
        closing.set()

    with socket.socket() as client:
        call_soon(connect)
        assert connecting.wait(30)
        monkeypatch.setattr(proxy._loop, "call_soon_threadsafe", close)
        proxy.close()
        gc.collect()


def test_closing_ends_the_thread_and_the_connections(any_redis: RedisServer) -> None:
    def of_proxies() -> int:
        return len([thread for thread in threading.enumerate() if thread.name == "proxy"])

    before = of_proxies()
    with (
        Proxy(any_redis.host, any_redis.port) as proxy,
        redis.Redis.from_url(proxy.url(any_redis.url), retry=None) as client,
    ):
        client.ping()
        assert of_proxies() == before + 1
        proxy.close()
        assert of_proxies() == before
        with pytest.raises(redis.ConnectionError):
            client.ping()


@pytest.mark.parametrize("what", ["reply", "request"])
def test_a_commit_whose_reply_is_lost(
    proxy: ProxyFactory, postgres_server: PostgresServer, postgres_url: str, what: str
) -> None:
    url = postgres_url.replace("+psycopg", "")
    with psycopg.connect(url, autocommit=True) as direct:
        direct.execute("CREATE TABLE entries (n int)")
        between = proxy(postgres_server)
        lose = between.drop_reply_when if what == "reply" else between.drop_request_when
        loss = lose(lambda request: b"COMMIT" in request)
        connection = psycopg.connect(between.url(url))
        connection.execute("INSERT INTO entries VALUES (1)")
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
        connection.close()
        assert loss.fired == 1
        rows = direct.execute("SELECT n FROM entries").fetchall()
        assert rows == ([(1,)] if what == "reply" else [])
