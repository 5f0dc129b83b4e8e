"""``fencing doctor --database``: each finding is provoked on a real server."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from sqlalchemy import create_engine

from examples.servers import FakeClock, PostgresServer, start_mariadb, start_postgres
from examples.servers.postgres import start_standby
from fencing import SQLCoordinator
from fencing.cli.doctor import databases
from fencing.cli.doctor import sqlite as doctor_of_sqlite
from fencing.cli.doctor.findings import NotExamined
from storage_guards import SQLAlchemyGuard
from storage_guards.sql.text_functions import functions_of_texts
from tests.support.commands import fencing
from tests.support.doctor import as_account, examined
from tests.support.servers import MariaDBServer, PgBouncerServer

TABLES = ("fencing_marks", "fencing_done", "fencing_locks")


def make_tables(url: str, *, marks: bool = True, locks: bool = True) -> None:
    engine = create_engine(url)
    if marks:
        SQLAlchemyGuard(engine).create_tables()
    if locks:
        with SQLCoordinator(engine) as coordinator:
            coordinator.create_tables()
    engine.dispose()


def dsn_of(url: str) -> str:
    return urlsplit(url)._replace(scheme="postgresql").geturl()


@contextmanager
def role_of(url: str) -> Iterator[tuple[psycopg.Connection[tuple[object, ...]], str]]:
    """Make a role without rights. Yield an administrator's connection, and the URL of the role."""
    with psycopg.connect(dsn_of(url), autocommit=True) as admin:
        admin.execute("CREATE ROLE doctored LOGIN")
        try:
            parts = urlsplit(url)
            place = parts.netloc.rpartition("@")[2]
            yield admin, parts._replace(netloc=f"doctored@{place}").geturl()
        finally:
            admin.execute("DROP OWNED BY doctored")
            admin.execute("DROP ROLE doctored")


@pytest.mark.thorough
def test_postgresql_with_its_tables(postgres_url: str, postgres_server: PostgresServer) -> None:
    report = examined("--database", postgres_url)
    assert report.level("neither fencing_marks nor fencing_locks") == "wrong"
    make_tables(postgres_url)
    report = examined("--database", postgres_url)
    assert report.levels("is of version 1, and this account may use it") == ["ok"] * 3
    assert report.level(f"PostgreSQL {postgres_server.version[0]}.") == "ok"
    assert report.level("default isolation is read committed") == "ok"
    assert report.level("statement_timeout none") == "ok"
    assert report.level("clock is within") == "ok"


@pytest.mark.thorough
def test_one_kind_of_table(postgres_url: str) -> None:
    make_tables(postgres_url, locks=False)
    report = examined("--database", postgres_url)
    assert report.level("fencing_locks is not there: no locks here") == "ok"
    with psycopg.connect(dsn_of(postgres_url), autocommit=True) as admin:
        admin.execute("DROP TABLE fencing_done")
        assert examined("--database", postgres_url).level("the table fencing_done is missing") == "warning"
        admin.execute("ALTER TABLE fencing_marks ALTER version SET DEFAULT 2")
        assert examined("--database", postgres_url).level("fencing_marks is of version 2") == "wrong"
        admin.execute("ALTER TABLE fencing_marks DROP version")
        assert examined("--database", postgres_url).level("fencing_marks is of version none") == "wrong"
        admin.execute("DROP TABLE fencing_marks")
    make_tables(postgres_url, marks=False)
    assert examined("--database", postgres_url).level("fencing_marks is not there: no guards here") == "ok"


@pytest.mark.thorough
def test_the_rights_and_settings_of_a_role_of_postgresql(postgres_url: str) -> None:
    make_tables(postgres_url)
    with role_of(postgres_url) as (admin, url):
        admin.execute("GRANT SELECT ON fencing_marks, fencing_done TO doctored")
        report = examined("--database", url)
        lacks = report.one("lacks INSERT, UPDATE on public.fencing_marks")
        assert lacks["level"] == "wrong"
        assert "GRANT INSERT, UPDATE ON public.fencing_marks TO doctored" in lacks["change"].splitlines()
        assert report.level("lacks INSERT on public.fencing_done") == "wrong"
        assert report.level("lacks SELECT, INSERT, UPDATE on public.fencing_locks") == "wrong"
        admin.execute("GRANT SELECT, INSERT, UPDATE ON fencing_marks, fencing_done, fencing_locks TO doctored")
        report = examined("--database", url)
        assert report.levels("and this account may use it") == ["ok"] * 3
        admin.execute("ALTER ROLE doctored SET lock_timeout = '200ms'")
        assert examined("--database", url).level("lock_timeout is 0.2 s") == "warning"
        admin.execute("ALTER ROLE doctored SET default_transaction_isolation = 'serializable'")
        assert examined("--database", url).level("isolation is serializable: some blocks") == "ok"
        admin.execute("ALTER ROLE doctored SET synchronous_commit = 'off'")
        assert examined("--database", url).level("synchronous_commit is off") == "warning"


@pytest.mark.thorough
def test_a_role_that_may_only_read_suffices_for_the_doctor(postgres_url: str) -> None:
    """So it writes nothing: the server would refuse it."""
    make_tables(postgres_url)
    with role_of(postgres_url) as (admin, url):
        admin.execute("GRANT SELECT ON fencing_marks, fencing_done, fencing_locks TO doctored")
        admin.execute("ALTER ROLE doctored SET default_transaction_read_only = on")
        report = examined("--database", url)
        assert report.level("transactions of this role are read only") == "wrong"
        assert not [each for each in report.findings if each["level"] == "unknown"]


@pytest.mark.thorough
def test_the_functions_for_scripts_enforce_nothing(postgres_url: str) -> None:
    make_tables(postgres_url)
    engine = create_engine(postgres_url)
    with engine.begin() as connection:
        connection.exec_driver_sql(functions_of_texts("public", is_named=True, made_by="a test").replace("%", "%%"))
    engine.dispose()
    assert not examined("--database", postgres_url).levels("is enforced")


@pytest.mark.thorough
def test_a_database_that_enforces(postgres_url: str) -> None:
    make_tables(postgres_url)
    with role_of(postgres_url) as (admin, url):
        admin.execute("CREATE TABLE stock (item text)")
        engine = create_engine(postgres_url)
        SQLAlchemyGuard(engine).enforce("stock", resource="'stock:' || item", role="doctored")
        engine.dispose()
        assert examined("--database", url).level("is enforced, and this role may check") == "ok"


@pytest.mark.thorough
def test_a_pooler(pgbouncer_server: PgBouncerServer, postgres_url: str) -> None:
    make_tables(postgres_url)
    finding = examined("--database", pgbouncer_server.url(postgres_url)).one("there is a pooler")
    assert (finding["level"], finding["page"]) == ("warning", "docs/operations/upkeep.md#poolers")


@pytest.mark.thorough
def test_a_standby_and_how_commits_reach_it() -> None:
    with start_postgres(own=True, local=True) as primary, start_standby(primary) as standby:
        url = primary.create_database()
        with primary.connect() as admin:
            deadline = time.monotonic() + 60
            while admin.execute("SELECT count(*) FROM pg_stat_replication").fetchone() != (1,):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            make_tables(url)
            assert examined("--database", url).level("1 standbys follow") == "warning"
            admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'")
            admin.execute("SELECT pg_reload_conf()")
            while not (report := examined("--database", url)).levels("commits wait for ANY 1 (*)"):
                assert time.monotonic() < deadline
            assert report.level("commits wait for") == "ok"
            admin.execute("ALTER SYSTEM SET synchronous_commit = 'local'")
            admin.execute("SELECT pg_reload_conf()")
            while not examined("--database", url).levels("no commit waits for a standby"):
                assert time.monotonic() < deadline
        there = urlsplit(standby.url)._replace(path=urlsplit(url).path).geturl()
        while not (report := examined("--database", there)).levels("fencing_locks is of version 1"):
            assert time.monotonic() < deadline
        assert report.level("this server is a standby") == "wrong"


@pytest.mark.thorough
def test_a_clock_of_postgresql_that_is_behind() -> None:
    with closing(FakeClock()) as fake:
        fake.set(-60)
        Path(fake.environment["FAKETIME_TIMESTAMP_FILE"]).parent.chmod(0o755)  # the server is of another user
        with start_postgres(own=True, local=True, environment=fake.environment) as server:
            report = examined("--database", server.create_database())
    assert re.search(r"(59|60)\.\d s behind", report.one("clock")["what"])
    assert report.level("clock") == "warning"


@pytest.mark.thorough
def test_mariadb_and_the_rights_of_an_account(mariadb_server: MariaDBServer, mariadb_url: str) -> None:
    name = urlsplit(mariadb_url).path.removeprefix("/")
    assert examined("--database", mariadb_url).level("neither fencing_marks nor fencing_locks") == "wrong"
    make_tables(mariadb_url)
    counts = f"SELECT {', '.join(f'(SELECT count(*) FROM `{name}`.{table})' for table in TABLES)}"
    before = mariadb_server.execute(counts)
    report = examined("--database", mariadb_url)
    assert mariadb_server.execute(counts) == before
    assert report.levels("is of version 1, and this account may use it") == ["ok"] * 3
    assert report.level("innodb_lock_wait_timeout 50 s") == "ok"
    assert report.level("isolation is repeatable read: guards use") == "ok"
    mariadb_server.execute("CREATE USER 'doctored'@'%' IDENTIFIED BY 's3cr3t'")
    try:
        for table in TABLES:
            mariadb_server.execute(f"GRANT SELECT ON `{name}`.{table} TO 'doctored'@'%'")
        mariadb_server.execute(f"GRANT INSERT ON `{name}`.fencing_locks TO 'doctored'@'%'")
        report = examined("--database", as_account(mariadb_url, "doctored", "s3cr3t"))
        assert report.level(f"lacks INSERT, UPDATE on {name}.fencing_marks") == "wrong"
        lacks = report.one(f"lacks UPDATE on {name}.fencing_locks")
        assert lacks["change"].endswith(f"GRANT UPDATE ON {name}.fencing_locks TO 'doctored'@'%'")
        assert "s3cr3t" not in str(report)
    finally:
        mariadb_server.execute("DROP USER 'doctored'@'%'")


@pytest.mark.thorough
def test_settings_of_mariadb() -> None:
    settings = {"log-bin": "log", "server-id": "1", "max-statement-time": "0.5", "read-only": "1"}
    with start_mariadb(settings=settings, own=True, local=True) as server:
        url = server.create_database()
        report = examined("--database", url)
        assert report.level("max_statement_time is 0.5 s") == "warning"
        assert report.level("the server is read only") == "wrong"
        server.execute("CREATE USER copies IDENTIFIED BY 'c'")
        server.execute("GRANT REPLICATION SLAVE ON *.* TO copies")
        with start_mariadb(settings={"server-id": "2"}, own=True, local=True) as replica:
            replica.execute(
                f"CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={server.port}, MASTER_USER='copies', "
                "MASTER_PASSWORD='c', MASTER_USE_GTID=slave_pos"
            )
            replica.execute("START SLAVE")
            deadline = time.monotonic() + 60
            while not examined("--database", url).levels("1 replicas follow"):
                assert time.monotonic() < deadline
        server.execute("SET GLOBAL rpl_semi_sync_master_enabled = ON")
        assert examined("--database", url).level("replication is semi-synchronous") == "ok"


def test_a_file_of_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "data.db"
    url = f"sqlite:///{path}"
    assert examined("--database", url).level("there is no file") == "wrong"
    assert not path.exists()
    make_tables(url)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL").fetchone()
    before = path.read_bytes(), sorted(tmp_path.iterdir())
    report = examined("--database", url)
    assert (path.read_bytes(), sorted(tmp_path.iterdir())) == before
    assert report.status == 0
    assert report.level("journal_mode is wal") == "ok"
    assert report.levels("is of version 1") == ["ok"] * 3
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE").fetchone()
    assert examined("--database", url).level("journal_mode is delete") == "ok"
    path.write_bytes(b"no database" * 100)
    assert examined("--database", url).level("cannot be read") == "unknown"


def test_modes_and_places_of_sqlite() -> None:
    assert {mode: next(doctor_of_sqlite.journal(mode)).level for mode in ("wal", "delete", "off", "memory")} == {
        "wal": "ok",
        "delete": "ok",
        "off": "wrong",
        "memory": "wrong",
    }
    [finding] = doctor_of_sqlite.file_system("/proc/self/status")  # a file system on which nothing is known of locks
    assert finding.level == "warning"


def test_the_file_of_local_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    report = examined("--local")
    assert (report.status, report.level("there is no file")) == (2, "wrong")
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_each_service_that_is_named_is_examined(tmp_path: Path, postgres_url: str) -> None:
    url = f"sqlite:///{tmp_path / 'locks.db'}"
    make_tables(url)
    done = fencing("doctor", "--database", url, FENCING_REDIS_URL="redis://127.0.0.1:1/0", FENCING_DATABASE_URL="x://y")
    assert done.returncode == 69
    assert [line for line in done.stdout.splitlines() if line and line[0] != " "] == ["redis://127.0.0.1:1/0", url]


def test_a_database_that_does_not_answer() -> None:
    report = examined("--database", "postgresql://me:s3cr3t@127.0.0.1:1/shop")
    assert (report.status, [each["level"] for each in report.findings]) == (69, ["unknown"])
    assert "s3cr3t" not in str(report)


@pytest.mark.thorough
def test_a_server_that_stands_still_between_two_requests(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "CONNECTION_SECONDS", 1.0)
    with psycopg.connect(dsn_of(postgres_url), autocommit=True) as admin:
        findings = databases.examine(postgres_url)
        assert next(findings).what.startswith("PostgreSQL")
        others = "datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        [(pid,)] = admin.execute(f"SELECT pid FROM pg_stat_activity WHERE {others}").fetchall()
        os.kill(pid, signal.SIGSTOP)
        limit = threading.Timer(30, os.kill, (pid, signal.SIGCONT))
        limit.start()
        try:
            with pytest.raises(NotExamined, match="does not answer"):
                list(findings)
        finally:
            limit.cancel()
            os.kill(pid, signal.SIGCONT)
