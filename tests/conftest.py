"""Real servers for the tests. Each starts when first asked for, once per run, and is empty before each test.

A server that is nowhere to be found skips the tests that need it, unless FENCING_REQUIRE_SERVERS names it
("redis-6.2,redis-7,redis-8,valkey-9,postgres,s3,azure,s3rver"): then they fail.

With FENCING_TEST_REDIS_URL, the database of that URL is emptied (FLUSHDB)! The tests then run one after the other;
otherwise several processes share the tests, each with servers of its own.
"""

import gc
import os
import signal
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

from examples.servers import (
    EtcdServer,
    ObjectServer,
    PostgresServer,
    RedisCluster,
    RedisServer,
    S3Server,
    SentinelServers,
    ServerError,
    ZooKeeperServer,
    find_s3,
    start_etcd,
    start_postgres,
    start_redis,
    start_s3,
    start_zookeeper,
)
from examples.servers.settings import check_variables
from examples.servers.summary import summary
from fencing.redis import quirks, resp
from fencing.redis.connection_factory import ConnectionFactory
from tests.support.databases import Databases
from tests.support.fixtures import (
    HttpProxyFactory,
    ProxyFactory,
    RedisClusters,
    RedisFactory,
    RedisServers,
    flush,
    missing,
    missing_or_broken,
    name_of,
    newest_found,
    newest_local_series,
    redis_params,
)
from tests.support.load import LOAD_AT_START, load_now, usable_cpus, workers_for
from tests.support.sentinels import SharedSentinels
from tests.support.servers import (
    AzureServer,
    GCSServer,
    HttpProxy,
    MariaDBServer,
    PgBouncerServer,
    Proxy,
    find_azurite,
    find_pgbouncer,
    find_s3rver,
    start_azure,
    start_gcs,
    start_mariadb,
    start_pgbouncer,
    start_s3rver,
)
from tests.support.sides import Account, Side, with_python_parser
from tests.support.sql_ways import SharedWays, WayLender

LEVELS = ("deep", "thorough")
"""Marks of tests that `make test` leaves out, and options that run them. The first one of a test counts."""

WORKERS = pytest.StashKey[str]()
"""How many processes share the tests, and why."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fencing").addoption
    group("--thorough", action="store_true", help="run the tests marked thorough, and not deep, and those alone")
    group("--deep", action="store_true", help="run the tests marked deep, and those alone")


def pytest_configure() -> None:
    """Refuse variables of old names, and unknown words. Hear Ctrl-C, also where a shell runs this in the background.

    The commands of such a shell ignore the signal, and tests send it.
    """
    try:
        check_variables()
    except ServerError as error:
        raise pytest.UsageError(str(error)) from None
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the tests marked deep alone, or of the others those marked thorough, or the rest."""
    asked = next((level for level in LEVELS if config.getoption(level)), None)
    chosen: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        level = next((level for level in LEVELS if item.get_closest_marker(level)), None)
        (chosen if level == asked else others).append(item)
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = chosen


def pytest_collection_finish() -> None:
    """Spare the garbage collector the modules and the thousands of tests, which stay to the end."""
    gc.collect()
    gc.freeze()


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Share the CPUs with what else the machine does."""
    if os.environ.get("FENCING_TEST_REDIS_URL"):
        config.stash[WORKERS] = "1: FENCING_TEST_REDIS_URL names one database for all tests"
        return 0
    load = load_now()
    os.environ[LOAD_AT_START] = str(load)
    count, why = workers_for(usable_cpus(), load)
    config.stash[WORKERS] = f"{count}: {why}"
    return count


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say which servers the tests use, how many processes share the tests, and why."""
    return [*summary(), *([f"workers: {config.stash[WORKERS]}"] if WORKERS in config.stash else [])]


@pytest.fixture(autouse=True)
def _closed_clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the clients that servers gave to the test.

    redis-py's clients are in reference cycles. Where one is collected with its open socket, the order is not known: the
    socket may come first, and warns, in whatever test runs then.
    """
    made: list[weakref.ref[Any]] = []

    def recorded(client: Any) -> Any:
        def new_client(server: Any, **options: Any) -> Any:
            new = client(server, **options)
            made.append(weakref.ref(new))
            return new

        return new_client

    for kind in (RedisServer, RedisCluster, SentinelServers):
        monkeypatch.setattr(kind, "client", recorded(kind.client))
    yield
    for reference in made:
        if (client := reference()) is not None:
            client.close()


@pytest.fixture(autouse=True)
def _interrupted_objects(request: pytest.FixtureRequest) -> Iterator[None]:
    """Collect what interruptions have left half done, while the test's filters of warnings still apply."""
    yield
    for mark in request.node.iter_markers("filterwarnings"):
        if any("PytestUnraisableExceptionWarning" in text for text in mark.args):
            gc.collect()
            return


@pytest.fixture
def patient_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that try once have more than their second: a busy machine may take it all."""
    for module in ("settings", "plans"):
        monkeypatch.setattr(f"fencing.locks.{module}.TRY_SECONDS", 5.0)


@pytest.fixture(scope="session")
def redis_servers() -> Iterator[RedisServers]:
    with ExitStack() as stack:
        yield RedisServers(stack)


@pytest.fixture(params=redis_params())
def redis_server(request: pytest.FixtureRequest, redis_servers: RedisServers) -> RedisServer:
    """An empty Redis or Valkey, shared by the run: the newest version, and in the thorough run each other."""
    return flush(redis_servers.get(request.param))


@pytest.fixture
def any_redis(redis_servers: RedisServers) -> RedisServer:
    """An empty Redis, shared by the run: the newest version only."""
    return flush(redis_servers.newest())


@pytest.fixture
def fresh_redis() -> Iterator[RedisFactory]:
    """Starts Redis servers of the test's own, to freeze, kill or restart."""
    with ExitStack() as stack:

        def start(*, version: str | None = None, extra_args: Sequence[str] = ()) -> RedisServer:
            version = version or newest_found()
            try:
                server = start_redis(version=version, extra_args=extra_args, own=True)
            except ServerError as error:
                missing_or_broken(name_of(version), error)
            return stack.enter_context(server)

        yield start


@pytest.fixture(scope="session")
def redis_clusters() -> Iterator[RedisClusters]:
    with ExitStack() as stack:
        yield RedisClusters(stack)


@pytest.fixture
def redis_cluster(redis_clusters: RedisClusters) -> RedisCluster:
    """An empty Redis Cluster of the newest version, shared by the run: tests may move slots, but end no node."""
    cluster = redis_clusters.get(newest_local_series())
    cluster.flush()
    return cluster


@pytest.fixture
def fresh_cluster() -> Iterator[RedisCluster]:
    """A Redis Cluster of the test's own, to kill and to freeze."""
    with ExitStack() as stack:
        yield RedisClusters.start(stack)


@pytest.fixture(scope="session")
def shared_sentinels() -> Iterator[SharedSentinels]:
    with ExitStack() as stack:
        yield SharedSentinels(stack)


@pytest.fixture
def sentinels(shared_sentinels: SharedSentinels) -> SentinelServers:
    """The shared Sentinels of the newest version, with an empty primary."""
    return shared_sentinels.get(newest_found())


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL, shared by the run."""
    try:
        started = start_postgres()
    except ServerError as error:
        missing_or_broken("postgres", error)
    with started as server:
        yield server


@pytest.fixture(scope="session")
def postgres_databases(postgres_server: PostgresServer) -> Databases:
    return Databases(postgres_server)


@pytest.fixture
def postgres_url(postgres_databases: Databases) -> Iterator[str]:
    """The SQLAlchemy URL of a database that is empty, and the test's own."""
    with postgres_databases.one() as url:
        yield url


@pytest.fixture
def pgbouncer_server(postgres_server: PostgresServer) -> Iterator[PgBouncerServer]:
    """A pooler of transactions before the PostgreSQL of the run, with two connections to each database.

    Each test has its own: when a database is emptied, the pooler's connections to it are ended.
    """
    if not find_pgbouncer():
        missing("pgbouncer", "found no pgbouncer on PATH")
    with start_pgbouncer(postgres_server) as server:
        yield server


@pytest.fixture(scope="session")
def etcd_server() -> Iterator[EtcdServer]:
    """An etcd, shared by the run. Each test has names of its own."""
    try:
        started = start_etcd()
    except ServerError as error:
        missing_or_broken("etcd", error)
    with started as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper_server() -> Iterator[ZooKeeperServer]:
    """A ZooKeeper, shared by the run. Each test has names of its own."""
    try:
        started = start_zookeeper()
    except ServerError as error:
        missing_or_broken("zookeeper", error)
    with started as server:
        yield server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """An S3, shared by the run: `store()` opens a new bucket in it."""
    if not find_s3():
        missing("s3", "moto is not installed")
    with start_s3() as server:
        yield server


@pytest.fixture(scope="session")
def racy_s3_server() -> Iterator[S3Server]:
    """An S3 that lets conditional puts that meet all succeed."""
    if not find_s3():
        missing("s3", "moto is not installed")
    with start_s3(serialised=False) as server:
        yield server


@pytest.fixture(scope="session")
def s3rver_server() -> Iterator[S3Server]:
    """An S3 that ignores every condition."""
    if not find_s3rver():
        missing("s3rver", "found no s3rver; `make node` installs one")
    with start_s3rver() as server:
        yield server


@pytest.fixture(scope="session")
def azure_server() -> Iterator[AzureServer]:
    """An Azure Blob Storage, shared by the run: `store()` opens a new container in it."""
    if not find_azurite():
        missing("azure", "found no Azurite; `make node` installs one")
    with start_azure() as server:
        yield server


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[GCSServer]:
    """A Google Cloud Storage (ours, after the documentation), shared by the run."""
    with start_gcs() as server:
        yield server


@pytest.fixture(params=["s3", "gcs", pytest.param("azure", marks=pytest.mark.thorough)])
def object_server(request: pytest.FixtureRequest) -> ObjectServer:
    """An object store, shared by the run: the test runs once on each kind."""
    server: ObjectServer = request.getfixturevalue(f"{request.param}_server")
    return server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDBServer]:
    """A MariaDB, or the MySQL that FENCING_TEST_MYSQL_URL names, shared by the run."""
    try:
        started = start_mariadb()
    except ServerError as error:
        missing_or_broken("mariadb", error)
    with started as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_databases(mariadb_server: MariaDBServer) -> Databases:
    return Databases(mariadb_server)


@pytest.fixture
def mariadb_url(mariadb_databases: Databases) -> Iterator[str]:
    """The SQLAlchemy URL (with PyMySQL) of a database that is empty, and the test's own."""
    with mariadb_databases.one() as url:
        yield url


@pytest.fixture(scope="session")
def postgres_ways(postgres_server: PostgresServer, postgres_databases: Databases) -> Iterator[SharedWays]:
    with closing(SharedWays(postgres_server, postgres_databases.one)) as ways:
        yield ways


@pytest.fixture(scope="session")
def mariadb_ways(mariadb_server: MariaDBServer, mariadb_databases: Databases) -> Iterator[SharedWays]:
    with closing(SharedWays(mariadb_server, mariadb_databases.one)) as ways:
        yield ways


@pytest.fixture(scope="session")
def sqlite_ways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedWays]:
    with closing(SharedWays(None, lambda: nullcontext(f"sqlite:///{tmp_path_factory.mktemp('way')}/data.db"))) as ways:
        yield ways


@pytest.fixture
def sql_ways(request: pytest.FixtureRequest) -> WayLender:
    """Lends ways to guarded SQL databases, with their tables as new."""
    return WayLender(request)


@pytest.fixture
def proxy() -> Iterator[ProxyFactory]:
    """Makes proxies in front of servers; `Proxy.url` turns a URL into the one through the proxy."""
    with ExitStack() as stack:

        def make(server: RedisServer | PostgresServer | ObjectServer) -> Proxy:
            return stack.enter_context(Proxy(server.host, server.port))

        yield make


@pytest.fixture
def http_proxy() -> Iterator[HttpProxyFactory]:
    """Makes HTTP proxies in front of object stores, which misbehave on request; `store(via=...)` goes through one."""
    with ExitStack() as stack:

        def make(server: ObjectServer) -> HttpProxy:
            return stack.enter_context(HttpProxy(server.host, server.port))

        yield make


@pytest.fixture(params=["sync", "async"])
def side(request: pytest.FixtureRequest) -> Iterator[Side]:
    side = Side(request.param == "async")
    yield side
    for coordinator in side.made:
        side.call(coordinator.close)


@pytest.fixture(params=["postgres", "sqlite"])
def account(request: pytest.FixtureRequest, side: Side, tmp_path: Path) -> Iterator[Account]:
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    else:
        url = f"sqlite:///{tmp_path / 'account.sqlite'}"
    account = Account(side, url)
    yield account
    account.close()


@pytest.fixture(params=["as installed", "no hiredis", "a class without sockets"])
def way_to_redis(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How connections are written to and read, and given time-outs."""
    way: str = request.param
    if way == "no hiredis":
        monkeypatch.setattr(resp, "hiredis", None)
        monkeypatch.setattr(ConnectionFactory, "make", with_python_parser(ConnectionFactory.make))
    elif way == "a class without sockets":
        for name in ("socket_of", "transport_of"):
            monkeypatch.setattr(quirks, name, lambda connection: None)
    return way
