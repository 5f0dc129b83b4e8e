"""A failover to a replica that lags, and a clock that jumps: locks may end early, and nothing is lost under a guard."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text

from examples.servers import ServerError, start_postgres
from examples.servers.postgres import start_standby
from fencing import CoordinatorUnavailable, FencingError, NotAcquired, SQLCoordinator
from storage_guards import SQLAlchemyGuard
from tests.support import wait_until
from tests.support.servers import start_mariadb

pytestmark = pytest.mark.thorough

ADD = text("UPDATE orders SET total = total + 1")
FAKETIME = [
    Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"),
    Path("/usr/lib64/faketime/libfaketimeMT.so.1"),
]


class Shop:
    """Workers with guarded orders, and locks beside them."""

    def __init__(self, url: str) -> None:
        self.engine = create_engine(url, pool_pre_ping=True, connect_args={"connect_timeout": 2})
        self.guard = SQLAlchemyGuard(self.engine)
        self.made: list[SQLCoordinator] = []

    def coordinator(self, **options: Any) -> SQLCoordinator:
        self.made.append(SQLCoordinator(self.engine, ttl=5, guards=[self.guard], **options))
        return self.made[-1]

    def create(self) -> None:
        self.guard.create_tables()
        self.coordinator().create_tables()
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE orders (total INTEGER)"))
            connection.execute(text("INSERT INTO orders VALUES (0)"))

    @property
    def total(self) -> int:
        with self.engine.connect() as connection:
            return int(connection.execute(text("SELECT total FROM orders")).scalar_one())

    def close(self) -> None:
        for coordinator in self.made:
            coordinator.close()
        self.engine.dispose()


class PostgreSQLPair:
    """A primary, and a replica that follows it."""

    def __init__(self, stack: ExitStack) -> None:
        self.primary = stack.enter_context(start_postgres(local=True))
        self.replica = stack.enter_context(start_standby(self.primary))
        self.name = self.primary.create_database().rpartition("/")[2]

    def shop(self) -> Shop:
        """Return a shop whose connections go to the server that takes writes."""
        hosts = "&".join(f"host=127.0.0.1:{server.port}" for server in (self.primary, self.replica))
        return Shop(f"postgresql+psycopg://postgres@/{self.name}?{hosts}&target_session_attrs=read-write")

    @property
    def replica_url(self) -> str:
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.replica.port}/{self.name}"

    def part(self) -> None:
        """Let the replica catch up, and follow no longer."""
        with self.primary.connect() as on_primary, self.replica.connect() as on_replica:
            [position] = on_primary.execute("SELECT pg_current_wal_lsn()").fetchone() or [None]
            caught_up = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
            wait_until(lambda: on_replica.execute(caught_up, [position]).fetchone() == (True,))
            on_replica.execute("ALTER SYSTEM SET primary_conninfo = ''")
            on_replica.execute("SELECT pg_reload_conf()")
            wait_until(lambda: on_replica.execute("SELECT 1 FROM pg_stat_wal_receiver").fetchone() is None)

    def fail_over(self) -> None:
        self.primary.kill()
        with self.replica.connect() as on_replica:
            on_replica.execute("SELECT pg_promote()")


class MariaDBPair:
    """The same with MariaDB. Its driver knows one address, so a hook of the engine's connections chooses it."""

    def __init__(self, stack: ExitStack) -> None:
        settings = {"log-bin": "log", "log-basename": "fencing", "innodb-flush-log-at-trx-commit": "1"}
        self.primary = stack.enter_context(start_mariadb(local=True, settings={**settings, "server-id": "1"}))
        self.replica = stack.enter_context(
            start_mariadb(local=True, settings={**settings, "server-id": "2", "read-only": "1"})
        )
        self.port = self.primary.port
        self.replica.execute(
            f"CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={self.primary.port}, MASTER_USER='root', "
            "MASTER_USE_GTID=slave_pos"
        )
        self.replica.execute("START SLAVE")
        self.url = self.primary.create_database()

    def shop(self) -> Shop:
        """Return a shop whose connections go to the server that takes writes."""
        shop = Shop(self.url)
        event.listen(shop.engine, "do_connect", self._choose)
        return shop

    def _choose(self, dialect: Any, record: Any, arguments: Any, options: dict[str, Any]) -> None:
        options["port"] = self.port

    @property
    def replica_url(self) -> str:
        return self.url.replace(f":{self.primary.port}/", f":{self.replica.port}/")

    def part(self) -> None:
        """Let the replica catch up, and follow no longer."""
        [(position,)] = self.primary.execute("SELECT @@gtid_binlog_pos")
        assert self.replica.execute(f"SELECT MASTER_GTID_WAIT('{position}', 20)") == [(0,)]
        self.replica.execute("STOP SLAVE")

    def fail_over(self) -> None:
        self.primary.kill()
        self.replica.execute("SET GLOBAL read_only = 0")
        self.port = self.replica.port


Pair = PostgreSQLPair | MariaDBPair


@pytest.fixture(params=[PostgreSQLPair, MariaDBPair])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with ExitStack() as stack:
        try:
            made: Pair = request.param(stack)
        except ServerError as error:
            pytest.skip(str(error))
        yield made


def refused_by_a_replica(url: str) -> None:
    with SQLCoordinator(create_engine(url)) as coordinator:
        assert coordinator.holder("orders") is None
        started = time.monotonic()
        with pytest.raises(CoordinatorUnavailable, match="read-only"):
            coordinator.acquire("orders", timeout=0.3)
        assert time.monotonic() - started < 30


def test_a_failover_to_a_lagging_replica(pair: Pair) -> None:
    """The promoted replica knows neither the last holder nor its write. Its number is minted above, all the same.

    Before it is promoted, it is asked for locks: it says that it only reads.
    """
    shop = pair.shop()
    try:
        shop.create()
        holder, other = shop.coordinator(), shop.coordinator()
        first = holder.acquire("orders", timeout=5)
        shop.guard.write(first, ADD)
        first.release()
        pair.part()
        lost = holder.acquire("orders", timeout=5)
        shop.guard.write(lost, ADD)
        refused_by_a_replica(pair.replica_url)
        pair.fail_over()
        newer = other.acquire("orders", timeout=20)
        assert newer.fence.number > lost.fence.number > first.fence.number
        shop.guard.write(newer, ADD)
        with pytest.raises(FencingError):
            shop.guard.write(lost, ADD)
        wait_until(lambda: not lost.held)
        assert shop.total == 2
        assert newer.release()
    finally:
        shop.close()


class Clock:
    """The clock of a server, in seconds beside the real one."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.jump(0)
        self._file.chmod(0o644)

    def jump(self, seconds: int) -> None:
        made = self._file.with_suffix(".new")
        made.write_text(f"{seconds:+d}\n")
        made.chmod(0o644)
        made.replace(self._file)


@pytest.fixture(params=[start_postgres, start_mariadb])
def clocked(request: pytest.FixtureRequest) -> Iterator[tuple[Shop, Clock]]:
    """A server whose clock the test sets."""
    library = next((path for path in FAKETIME if path.exists()), None)
    if library is None:
        pytest.skip("no libfaketime: apt-get install faketime")
    temporary = TemporaryDirectory(prefix="fencing-clock-")
    folder = Path(temporary.name)
    folder.chmod(0o755)  # the server runs as another user
    clock = Clock(folder / "clock")
    environment = {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(folder / "clock"),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    try:
        server = request.param(local=True, environment=environment)
    except ServerError as error:
        pytest.skip(str(error))
    with temporary, server:
        shop = Shop(server.create_database())
        shop.create()
        yield shop, clock
        shop.close()


def test_a_clock_that_jumps(clocked: tuple[Shop, Clock]) -> None:
    shop, clock = clocked
    holder, other = shop.coordinator(), shop.coordinator()

    early = holder.acquire("orders", timeout=5)
    shop.guard.write(early, ADD)
    clock.jump(3600)  # the lease ends early, and its holder is refused
    newer = other.acquire("orders", timeout=5)
    assert newer.fence.number > early.fence.number
    shop.guard.write(newer, ADD)
    with pytest.raises(FencingError):
        shop.guard.write(early, ADD)
    wait_until(lambda: not early.held)
    assert newer.release()

    living, dead = holder.acquire("living", timeout=5), holder.lock("dead", renew=False).acquire(timeout=5).detach()
    clock.jump(-3600)
    wait_until(lambda: renewed(living))
    with pytest.raises(NotAcquired):
        other.acquire("living", timeout=0)
    lease = other.acquire("dead", timeout=30)  # it would last for two hours
    assert lease.fence.number > dead.number
    again = other.acquire("orders", timeout=5)
    assert again.fence.number > newer.fence.number
    shop.guard.write(again, ADD)
    assert shop.total == 3
    for each in (lease, again, living):
        assert each.release()


def renewed(lease: Any) -> bool:
    lease.renew()
    return True
