"""Exit statuses of errors: 69 says to try again, 78 says that somebody must change something first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from sqlalchemy import create_engine

from examples.servers import RedisServer, start_postgres
from fencing import (
    CoordinatorUnavailable,
    Fence,
    GuardNotEnforceable,
    GuardUnavailable,
    LeaseLost,
    MarkImplausible,
    NotAcquired,
    OutcomeUnknown,
    SQLCoordinator,
    StaleFence,
    UnclaimedFence,
)
from fencing.cli import status
from fencing.cli.services import NoUrl
from tests.support.commands import Command, guard_on
from tests.support.doctor import as_account
from tests.support.enforced import dsn, two_roles
from tests.support.servers import MariaDBServer

FENCE = Fence("r", 7, "t" * 22)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NotAcquired(resource="r", reason="held", waited=0), 75),
        (LeaseLost(fence=FENCE, reason="gone"), 76),
        (StaleFence(fence=FENCE, mark=None), 76),
        (UnclaimedFence(fence=FENCE, mark=None), 76),
        (CoordinatorUnavailable("no answer"), 69),
        (CoordinatorUnavailable("no right", refused=True), 78),
        (GuardUnavailable("no answer"), 69),
        (OutcomeUnknown(fence=FENCE, seq=1), 69),
        (GuardNotEnforceable("no table"), 78),
        (MarkImplausible(resource="r", number=9, ceiling=8), 78),
        (ModuleNotFoundError("redis"), 78),
        (NoUrl(), 78),
        (ValueError(), 64),
        (TypeError(), 64),
    ],
)
def test_each_error_has_a_status(error: Exception, expected: int) -> None:
    assert status.of(error) == expected


def test_a_fault_of_the_program_has_none() -> None:
    with pytest.raises(KeyError):
        status.of(KeyError())


def refuses(command: Command, url: str, *words: str, by: str) -> None:
    """See that all commands say that the service of a URL refuses us."""
    option = "--redis" if url.startswith("redis") else "--database"
    for arguments in (["holder", "a"], ["run", "a", "--no-wait"], ["list"]):
        more = ["--", "false"] if arguments[0] == "run" else []
        done = command(*arguments, option, url, *more)
        assert (done.returncode, done.stdout) == (78, ""), (arguments, done)
        assert by in done.stderr
        assert "s3cr3t" not in done.stderr.split("put the URL into a file", 1)[-1]
    if option == "--database":
        done = command("marks", url)
        assert (done.returncode, done.stdout) == (78, ""), done


@contextmanager
def user_of(server: RedisServer, *commands: str) -> Iterator[str]:
    with server.client() as admin:
        admin.acl_setuser(
            "limited", enabled=True, passwords=["+s3cr3t"], keys=["*"], categories=["+@all"], commands=list(commands)
        )
        try:
            yield as_account(server.url, "limited", "s3cr3t")
        finally:
            admin.acl_deluser("limited")


@pytest.mark.thorough
def test_a_redis_that_refuses_us(command: Command, any_redis: RedisServer, tmp_path: Path) -> None:
    with user_of(any_redis, "-eval", "-evalsha", "-scan") as url:
        refuses(command, url, by="has no permissions")
        refuses(command, as_account(url, "limited", "other"), by="refused the credentials")
        held = command(
            "run", "a", "--database", f"sqlite:///{tmp_path}/locks.db", "--guard", url, "--no-wait", "--", "false"
        )
        assert held.returncode == 78


@pytest.mark.thorough
def test_a_postgresql_that_refuses_us(command: Command, postgres_url: str) -> None:
    refuses(command, postgres_url, by="fencing_")  # the tables are missing
    parts = urlsplit(postgres_url)
    refuses(command, parts._replace(path="/no_such_database").geturl(), by="does not exist")
    place = parts.netloc.rpartition("@")[2]
    refuses(command, parts._replace(netloc=f"no_such_role@{place}").geturl(), by="does not exist")
    with two_roles(postgres_url) as roles, roles.as_admin() as admin:
        engine = create_engine(postgres_url)
        with guard_on(postgres_url) as guard, SQLCoordinator(engine) as coordinator:
            guard.create_tables()
            coordinator.create_tables()
        engine.dispose()
        refuses(command, roles.app_url, by="permission denied")
        admin.execute(f"GRANT SELECT, INSERT, UPDATE ON fencing_locks TO {roles.app}")
        assert command("holder", "a", "--database", roles.app_url).returncode == 1


@pytest.mark.thorough
def test_a_wrong_password_of_postgresql(command: Command) -> None:
    with start_postgres(own=True, local=True) as server:
        url = server.create_database()
        with psycopg.connect(dsn(url), autocommit=True) as admin:
            admin.execute("CREATE ROLE worker LOGIN PASSWORD 'other'")
            [place] = admin.execute("SELECT current_setting('hba_file')").fetchone() or [""]
            file = Path(place)
            file.write_text(f"host all worker all scram-sha-256\n{file.read_text()}")
            admin.execute("SELECT pg_reload_conf()")
        refuses(command, as_account(url, "worker", "s3cr3t"), by="password authentication failed")


@pytest.mark.thorough
def test_a_mariadb_that_refuses_us(command: Command, mariadb_server: MariaDBServer, mariadb_url: str) -> None:
    refuses(command, mariadb_url, by="fencing_")
    refuses(command, as_account(mariadb_url, "nobody", "s3cr3t"), by="Access denied")
    engine = create_engine(mariadb_url)
    with guard_on(mariadb_url) as guard, SQLCoordinator(engine) as coordinator:
        guard.create_tables()
        coordinator.create_tables()
    engine.dispose()
    mariadb_server.execute("CREATE USER 'limited'@'%' IDENTIFIED BY 's3cr3t'")
    try:
        refuses(command, as_account(mariadb_url, "limited", "s3cr3t"), by="denied")
    finally:
        mariadb_server.execute("DROP USER 'limited'@'%'")
