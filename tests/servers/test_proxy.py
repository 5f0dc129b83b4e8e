"""The proxy: what it passes, what it loses, and what the client can tell."""

import threading

import psycopg
import pytest
import redis

from examples.servers import PostgresServer, RedisServer
from tests.support import wait_until
from tests.support.fixtures import ProxyFactory
from tests.support.servers import Proxy


@pytest.fixture
def redis_proxy(proxy: ProxyFactory, any_redis: RedisServer) -> Proxy:
    return proxy(any_redis)


@pytest.fixture
def through(any_redis: RedisServer, redis_proxy: Proxy) -> redis.Redis:
    return redis.Redis.from_url(redis_proxy.url(any_redis.url), socket_timeout=5, retry=None)


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


def test_refuse_and_restore(redis_proxy: Proxy, through: redis.Redis) -> None:
    through.ping()
    redis_proxy.refuse()
    with pytest.raises(redis.ConnectionError):
        through.ping()
    redis_proxy.restore()
    assert through.ping()
    through.close()
    wait_until(lambda: redis_proxy.connections == 0)


def test_close_raises_the_error_of_a_predicate(any_redis: RedisServer) -> None:
    proxy = Proxy(any_redis.host, any_redis.port)
    proxy.drop_reply_when(lambda request: bool(1 / 0))
    with redis.Redis.from_url(proxy.url(any_redis.url), retry=None) as client, pytest.raises(redis.ConnectionError):
        client.ping()
    with pytest.raises(ZeroDivisionError):
        proxy.close()
    proxy.close()  # once is enough, twice does no harm


def test_closing_ends_the_thread_and_the_connections(any_redis: RedisServer) -> None:
    before = threading.active_count()
    with (
        Proxy(any_redis.host, any_redis.port) as proxy,
        redis.Redis.from_url(proxy.url(any_redis.url), retry=None) as client,
    ):
        client.ping()
        assert threading.active_count() == before + 1
        proxy.close()
        assert threading.active_count() == before
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
