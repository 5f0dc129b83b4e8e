"""One URL for each kind of coordinator: what it may have, and that no message shows its secrets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import pytest
import redis
from sqlalchemy import create_engine

import fencing
from examples.servers import RedisCluster, RedisServer, SentinelServers
from examples.servers.etcd import EtcdServer, start_etcd
from examples.servers.zookeeper import ZooKeeperServer
from fencing import AsyncRedlockCoordinator, CoordinatorUnavailable, RedlockCoordinator, SQLCoordinator
from fencing.locks.urls import parse, redacted
from tests.support.fixtures import RedisFactory
from tests.support.sides import Side
from tests.support.tls import Tls, TlsOfBothSides

SUCH_AS = "x://host"


def parts(url: str) -> tuple[Any, ...]:
    return tuple(parse(url, 7, such_as=SUCH_AS))


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("x://", ("x", None, None, (("localhost", 7),), "", {})),
        ("X+Y://Host", ("x+y", None, None, (("Host", 7),), "", {})),
        (
            "x://a:1,b,[::1]:3/p/q?r=s&t=",
            ("x", None, None, (("a", 1), ("b", 7), ("::1", 3)), "p/q", {"r": "s", "t": ""}),
        ),
        ("x://me:p%40ss%2Fword@a", ("x", "me", "p@ss/word", (("a", 7),), "", {})),
        ("x://:secret@a/", ("x", None, "secret", (("a", 7),), "", {})),
        ("x://me@a/%2Fabs", ("x", "me", None, (("a", 7),), "/abs", {})),
        ("x://a?o=%26%20", ("x", None, None, (("a", 7),), "", {"o": "& "})),
    ],
)
def test_the_parts_of_a_url(url: str, found: tuple[Any, ...]) -> None:
    assert parts(url) == found


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("x://a:b", "with a port of digits; 'a:b' is none"),
        ("x://a:0", "a port is a number from 1 to 65535, not 0"),
        ("x://a:65536", "a port is a number from 1 to 65535, not 65536"),
        ("x://a,,b", "'' is none"),
        ("x://::1", "'::1' is none"),
        ("x://a?o=1&o=2", "names an option once; 'o' is there twice"),
        ("x://a#f", "is no URL such as 'x://host'"),
        ("x:/a", "is no URL"),
        ("", "has 1 to 4096 characters, not 0"),
        ("x://" + "a" * 4096, "has 1 to 4096 characters, not 4100"),
        ("x://a b", "neither blanks nor characters that are not printable"),
        ("x://a\n", "neither blanks nor"),
        (f"x://{','.join('a' * 33)}", "up to 32 hosts, not 33"),
    ],
)
def test_what_is_no_url(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parts(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://me:s3cr3t@host/0", "redis://me:***@host/0"),
        ("redis://:s3cr3t@host/0?a=b", "redis://:***@host/0?a=b"),
        ("redis://me:s3/cr@3t@host/0", "redis://me:***@host/0"),
        ("redis://me:s3@cr/3t@host/0", "redis://me:***@host/0"),
        ("redis://me@host/0", "redis://me@host/0"),
        ("redis://host/0?password=s3cr3t&db=1", "redis://host/0?password=***&db=1"),
        ("redis+sentinel://h/s/0?sentinel_password=s3cr3t", "redis+sentinel://h/s/0?sentinel_password=***"),
        ("me:s3cr3t@host", "me:***@host"),
        ("host/file@home", "host/file@home"),
        ("", ""),
    ],
)
def test_a_secret_is_not_shown(url: str, shown: str) -> None:
    assert redacted(url) == shown


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (5, "takes a URL such as"),
        (b"redis://h", "takes a URL such as"),
        ("redis", "is no URL: write its scheme first"),
        ("me:s3cr3t@host", "is no URL: write its scheme first"),
        ("consul://me:s3cr3t@h", "'consul' is no scheme of a coordinator; those are etcd"),
        ("redis://me:s3cr3t@h1,h2", r"names one server, not 2: write redis\+cluster://"),
        ("redis://me:s3cr3t@h/zero", "is the number of a database, not 'zero'"),
        ("redis://me:s3cr3t@h?nonsense=1", "has no option 'nonsense'; docs/guide/urls.md has those"),
        ("redis://me:s3cr3t@h?socket_timeout=soon", "'socket_timeout' .* is a number of seconds above 0, not 'soon'"),
        ("redis://me:s3cr3t@h?sockt_timeout=1", r"has no option 'sockt_timeout'; did you mean 'socket_timeout'\?"),
        ("redis://me:s3cr3t@h?credential_provider=x", "has no option 'credential_provider'"),
        ("redis://me:s3cr3t@h?retry=x", "has no option 'retry'"),
        ("redis://me:s3cr3t@h?max_connections=-1", "'max_connections' .* is a whole number, not '-1'"),
        ("redis://me:s3cr3t@h?socket_keepalive=on", "is one of 1, 0, true, false, yes, no, not 'on'"),
        ("redis://me:s3cr3t@h?ssl_ca_certs=x", "which is of TLS: write rediss in its scheme"),
        ("unix://run/redis.sock", "three slashes begin its path, as in 'unix:///run/redis.sock'"),
        ("unix:///tmp/x?nonsense=1", "a URL of unix:// has no option 'nonsense'"),
        ("redis+ring://me:s3cr3t@h", r"redis\+ring:// is no scheme of Redis"),
        ("redis+cluster://me:s3cr3t@h/1", "has the database 0 alone, not 1"),
        ("redis+sentinel://me:s3cr3t@h/", "names the service, as in"),
        ("redis+sentinel://me:s3cr3t@h/s/x", "is the number of a database, not 'x'"),
        ("redis+sentinel://me:s3cr3t@h/s?sentinel_pasword=1", "did you mean 'sentinel_password'\\?"),
        ("postgresql://me:s3cr3t@h", "names no database: postgresql://user@host/database"),
        ("postgresql://me:s3cr3t@h:port/d", "is no URL of SQLAlchemy|invalid literal"),
        ("postgresql+nothing://me:s3cr3t@h/d", "is no URL of SQLAlchemy"),
        (
            "postgresql://me:12/s3cr3t@h/d",
            r"'postgresql://me:\*\*\*@h/d' is no URL of SQLAlchemy .*: a password p@ss/word is",
        ),
        ("postgresql://me:12?s3cr3t@h/d", r"'postgresql://me:\*\*\*@h/d' is no URL of SQLAlchemy"),
        ("postgresql://h/d?conect_timeout=3", r"has no option 'conect_timeout'; did you mean 'connect_timeout'\?"),
        (
            "postgresql://h/d?connect_timeout=abc",
            "'connect_timeout' .* is a whole number of seconds above 0, not 'abc'",
        ),
        ("mysql://h/d?conect_timeout=3", r"has no option 'conect_timeout'; did you mean 'connect_timeout'\?"),
        ("mysql://h/d?connect_timeout=0", "'connect_timeout' .* is a whole number of seconds above 0, not '0'"),
        ("sqlite:///x?tiemout=3", r"has no option 'tiemout'; did you mean 'timeout'\?"),
        ("etcd://me:s3cr3t@h/path", "has no path, not 'path'"),
        ("etcd://me:s3cr3t@h?ca=x", "of etcd:// has no option 'ca'; it takes none"),
        ("etcds://me:s3cr3t@h?pem=x", "has no option 'pem'; it takes ca, cert, key"),
        ("etcds://me:s3cr3t@h?key=x", "name it by cert="),
        ("etcds://me:s3cr3t@h?ca=/nowhere", "cannot be used: .*No such file"),
        ("etcd://:s3cr3t@h", "user and password are texts: pass both"),
        ("zookeeper://me:s3cr3t@h?o=1", "of zookeeper:// has no option 'o'"),
        (["redis://h1", "redis://h2"], "odd number|at least 3"),
        (["redis://h1", "redis://h2", "etcd://me:s3cr3t@h"], "several URLs are the nodes of Redlock: .*etcd://me:"),
        ("redis://me:12/s3cr3t@h/0", r"'redis://me:\*\*\*@h/0' is no URL such as"),
        ("redis://:s3cr3t/12@h/0", r"'redis://:\*\*\*@h/0' is no URL such as"),
        ("redis://:12@3/s3cr3t@h/0", r"'redis://:\*\*\*@h/0' is no URL such as"),
        ("redis://me:12?s3cr3t@h/0", r"'redis://me:\*\*\*@h/0' is no URL such as"),
        ("etcd://me:12/s3cr3t@h", r"'etcd://me:\*\*\*@h' is no URL such as"),
        ("zookeeper://me:12/s3cr3t@h", r"'zookeeper://me:\*\*\*@h' is no URL such as"),
        ("redis://:s3cr3t\u2100@h/0", r"'redis://:\*\*\*@h/0' is no URL; percent-encode"),
        ("unix://:s3cr3t\u2100@/tmp/x", r"'unix://:\*\*\*@/tmp/x' is no URL; percent-encode"),
        ("postgresql://me:a@b:s3cr3t@h/d", r"'postgresql://me:\*\*\*@h/d' is no URL of SQLAlchemy"),
        ("postgresql://me:a@s3cr3t@h/d", r"'postgresql://me:\*\*\*@h/d' is no URL of SQLAlchemy"),
        ("redis://h?port=1", "names its server in front of its options, not by the option 'port'"),
        ("redis:///0?host=h", "not by the option 'host'"),
        ("redis+cluster://h?host=other", "not by the option 'host'"),
        ("redis+sentinel://h/s?host=other", "not by the option 'host'"),
        ([], "at least 3|odd"),
    ],
)
@pytest.mark.parametrize("connect", [fencing.connect, fencing.connect_async])
def test_a_wrong_url_is_refused_at_once(connect: Any, url: Any, says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says) as refused:
        connect(url)
    error: BaseException | None = refused.value
    while error is not None:
        assert "s3cr3t" not in str(error)
        error = error.__cause__


@pytest.mark.parametrize(
    ("connect", "driver", "says"),
    [
        (fencing.connect, "asyncpg", "for asyncio: leave '.asyncpg' out, or use fencing.connect_async in"),
        (fencing.connect_async, "psycopg2", "for threads: leave '.psycopg2' out, or use fencing.connect in"),
    ],
)
def test_a_driver_of_the_other_side_is_refused(connect: Any, driver: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        connect(f"postgresql+{driver}://h/d")


def test_the_schemes_of_redis_are_all_named() -> None:
    with pytest.raises(ValueError, match=r"redis, redis\+cluster, redis\+sentinel, rediss, rediss\+cluster"):
        fencing.connect("consul://h")


def test_options_of_each_kind_are_taken() -> None:
    of_redis = "socket_timeout=2&client_name=x&retry_on_timeout=true&max_connections=3&ssl_ca_certs=/x&db=2"
    fencing.connect(f"rediss://h?{of_redis}").close()
    fencing.connect("postgresql://h/d?connect_timeout=3&sslmode=require&application_name=x").close()
    fencing.connect("postgresql:///d?user=me@realm&host=/run").close()
    fencing.connect("mysql://h/d?read_timeout=3&ssl_ca=/x&charset=utf8mb4").close()
    fencing.connect("sqlite:///file:x?immutable=1&uri=true").close()


@pytest.mark.parametrize(
    ("driver", "says"), [("postgresql+pg8000", "install the package pg8000"), ("mysql+mysqldb", "package mysqlclient")]
)
def test_a_driver_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, driver: str, says: str) -> None:
    monkeypatch.setitem(sys.modules, "pg8000", None)
    monkeypatch.setitem(sys.modules, "MySQLdb", None)
    with pytest.raises(ModuleNotFoundError, match=says):
        fencing.connect(f"{driver}://h/d")


def test_a_wrong_option_is_refused() -> None:
    with pytest.raises(ValueError, match="ttl"):
        fencing.connect("redis://h", ttl=0)


def takes_a_lock(side: Side, url: Any, **options: Any) -> Any:
    """Two coordinators of the URL exclude one another. Return their class."""
    connect: Any = fencing.connect_async if side.asynchronous else fencing.connect
    one, two = connect(url, **options), connect(url, **options)
    try:
        lock = one.lock("urls")
        lease = side.call(lock.acquire, 30)
        assert side.call(two.lock("urls").try_acquire) is None
        side.call(lease.release)
        return type(one)
    finally:
        side.call(one.close)
        side.call(two.close)


def place_of(server: Any) -> str:
    return f"{server.host}:{server.port}"


def test_one_redis(side: Side, any_redis: RedisServer) -> None:
    url = f"redis://{place_of(any_redis)}/3?socket_timeout=5"
    assert takes_a_lock(side, url, ttl=5).__name__.endswith("RedisCoordinator")
    with redis.Redis(host=any_redis.host, port=any_redis.port, db=3) as client:
        assert client.dbsize()


@pytest.mark.thorough
def test_credentials_and_tls(side: Side, fresh_redis: RedisFactory, tmp_path: Path) -> None:
    tls = Tls(tmp_path)
    server = fresh_redis(version="7", extra_args=[*tls.arguments, "--requirepass", "s3/cr@t"])
    secret = quote("s3/cr@t", safe="")
    takes_a_lock(side, f"rediss://:{secret}@{place_of(server)}/0?ssl_ca_certs={tls.certificate}")
    with pytest.raises(CoordinatorUnavailable, match="refused the credentials"):
        takes_a_lock(side, f"rediss://:wrong@{place_of(server)}/0?ssl_ca_certs={tls.certificate}")


@pytest.mark.thorough
def test_a_unix_socket(side: Side, fresh_redis: RedisFactory, tmp_path: Path) -> None:
    with TemporaryDirectory() as short:  # a path of a socket has about a hundred characters
        fresh_redis(extra_args=["--unixsocket", f"{short}/redis"])
        takes_a_lock(side, f"unix://{short}/redis?db=2")


@pytest.mark.thorough
def test_a_cluster(side: Side, redis_cluster: RedisCluster) -> None:
    hosts = ",".join(place_of(node) for node in redis_cluster.servers)
    takes_a_lock(side, f"redis+cluster://127.0.0.1:1,{hosts}/0?socket_timeout=5")


def test_a_cluster_that_is_away() -> None:
    with pytest.raises(CoordinatorUnavailable, match=r"Redis Cluster.* 127\.0\.0\.1:1"):
        fencing.connect("redis+cluster://me:s3cr3t@127.0.0.1:1")


@pytest.mark.thorough
def test_sentinels(side: Side, sentinels: SentinelServers) -> None:
    hosts = ",".join(f"{host}:{port}" for host, port in sentinels.addresses)
    takes_a_lock(side, f"redis+sentinel://{hosts}/{sentinels.service}/1")


@pytest.mark.thorough
def test_redlock(side: Side, fresh_redis: RedisFactory) -> None:
    urls = [fresh_redis().url for _ in range(3)]
    kind = AsyncRedlockCoordinator if side.asynchronous else RedlockCoordinator
    assert takes_a_lock(side, urls, ttl=0.5) is kind


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
@pytest.mark.thorough
def test_postgresql(side: Side, postgres_url: str, scheme: str) -> None:
    SQLCoordinator(create_engine(postgres_url)).create_tables()
    takes_a_lock(side, f"{scheme}://{postgres_url.partition('://')[2]}")


@pytest.mark.parametrize("scheme", ["mysql", "mariadb"])
@pytest.mark.thorough
def test_mariadb(side: Side, mariadb_url: str, scheme: str) -> None:
    SQLCoordinator(create_engine(mariadb_url)).create_tables()
    takes_a_lock(side, f"{scheme}://{mariadb_url.partition('://')[2]}")


def test_sqlite(side: Side, tmp_path: Path) -> None:
    takes_a_lock(side, f"sqlite:///{tmp_path}/locks.db")


@pytest.mark.thorough
def test_etcd(side: Side, etcd_server: EtcdServer) -> None:
    takes_a_lock(side, f"etcd://127.0.0.1:1,{place_of(etcd_server)}")


@pytest.mark.thorough
def test_etcd_with_certificates_of_both_sides(side: Side, tmp_path: Path) -> None:
    tls = TlsOfBothSides(tmp_path)
    with start_etcd(extra_args=tls.arguments, own=True) as server:
        files = f"ca={tmp_path}/authority.pem&cert={tmp_path}/worker.pem&key={tmp_path}/worker.key"
        takes_a_lock(side, f"etcds://{place_of(server)}?{files}")


@pytest.mark.thorough
def test_zookeeper(side: Side, zookeeper_server: ZooKeeperServer) -> None:
    zookeeper_hosts = place_of(zookeeper_server)
    takes_a_lock(side, f"zookeeper://{zookeeper_hosts}")
    takes_a_lock(side, f"zookeeper://me:secret@{zookeeper_hosts}")


@pytest.mark.parametrize(
    ("package", "url", "extra"),
    [
        ("kazoo", "zookeeper://h", "zookeeper"),
        pytest.param("sqlalchemy", "sqlite:///x", "sqlalchemy", marks=pytest.mark.thorough),
        pytest.param("pymysql", "mysql://h/d", "mysql", marks=pytest.mark.thorough),
        ("httptools", "etcd://h", "etcd"),
    ],
)
def test_a_package_that_is_missing_is_named(package: str, url: str, extra: str) -> None:
    program = f"import sys; sys.modules[{package!r}] = None\nimport fencing\nfencing.connect({url!r})"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False).stderr
    assert f"needs {package}, which is not installed: install fencing with the extra [{extra}]" in said
