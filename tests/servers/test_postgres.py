"""The PostgreSQL that the other tests rely on."""

import os
import tempfile
from pathlib import Path

import psycopg
import pytest

from examples.servers import (
    PostgresBinary,
    PostgresServer,
    ServerError,
    find_postgres_binaries,
    postgres,
    start_postgres,
)

pytestmark = pytest.mark.thorough  # it tests only what other tests use


def _query(url: str, statement: str) -> object:
    with psycopg.connect(url.replace("+psycopg", ""), connect_timeout=5) as connection:
        row = connection.execute(statement).fetchone()
    return row and row[0]


def test_each_test_gets_a_database_of_its_own(postgres_server: PostgresServer, postgres_url: str) -> None:
    other = postgres_server.create_database()
    assert _query(postgres_url, "SELECT current_database()") != _query(other, "SELECT current_database()")
    with psycopg.connect(other.replace("+psycopg", "")):  # somebody is still connected
        postgres_server.drop_database(other)
        with pytest.raises(psycopg.OperationalError, match="does not exist"):
            _query(other, "SELECT 1")


def test_it_serves_the_version_it_says(postgres_server: PostgresServer) -> None:
    major = postgres_server.version[0]
    assert str(_query(postgres_server.dsn, "SHOW server_version")).startswith(f"{major}")


def test_settings_stop_crash_and_restart() -> None:
    with start_postgres(own=True, local=True, settings={"work_mem": "1234kB"}) as server:
        assert _query(server.dsn, "SHOW work_mem") == "1234kB"
        with server.connect() as connection:
            connection.execute("CREATE TABLE kept (n int)")
            server.kill()
            with pytest.raises(psycopg.OperationalError):
                connection.execute("INSERT INTO kept VALUES (1)")
        server.restart()
        assert _query(server.dsn, "SELECT count(*) FROM kept") == 0
        server.stop()
        assert server.pid is None
        with pytest.raises(psycopg.OperationalError):
            _query(server.dsn, "SELECT 1")


def test_an_external_server_cannot_be_stopped(postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCING_TEST_POSTGRES_URL", postgres_server.url)
    with start_postgres() as server:
        assert server.url == postgres_server.url
        assert server.version[0] == postgres_server.version[0]
        for handle in (server.stop, server.kill, server.restart):
            with pytest.raises(ServerError, match="FENCING_TEST_POSTGRES_URL"):
                handle()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to start PostgreSQL as somebody else")
def test_as_root_with_programs_and_temporary_directory_that_only_root_can_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    binary = find_postgres_binaries()[0]
    install = binary.directory.parent
    closed = tmp_path / install.parent.name
    closed.symlink_to(install.parent)
    closed.with_name(f"{closed.name}.libs").symlink_to(install.parent.with_name(f"{closed.name}.libs"))
    hidden = PostgresBinary(binary.version, closed / install.name / "bin", "closed")
    monkeypatch.setattr(postgres, "find_postgres_binaries", lambda: (hidden,))
    with start_postgres(own=True, local=True) as server:
        assert _query(server.dsn, "SELECT 1") == 1
