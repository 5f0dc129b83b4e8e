"""The MariaDB that the other tests rely on."""

import os
import tempfile
from pathlib import Path

import pymysql
import pytest

from examples.servers import ServerError, mariadb
from tests.support.servers import MariaDBServer, start_mariadb

pytestmark = pytest.mark.thorough  # it tests only what other tests use


def _query(url: str, statement: str) -> object:
    """The first value that a server on this machine answers."""
    port, _, database = url.rpartition(":")[2].partition("/")
    connection = pymysql.connect(
        host="127.0.0.1", port=int(port), user="root", database=database or None, connect_timeout=5
    )
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            row = cursor.fetchone()
    finally:
        connection.close()
    return row and row[0]


@pytest.fixture
def local() -> MariaDBServer:
    try:
        return start_mariadb(own=True, local=True, settings={"max-connections": "17"})
    except ServerError as error:
        if error.log:
            raise
        pytest.skip(str(error))


def test_each_test_gets_a_database_of_its_own(mariadb_server: MariaDBServer, mariadb_url: str) -> None:
    if mariadb_server.external:
        pytest.skip("an external server")
    other = mariadb_server.create_database()
    assert _query(mariadb_url, "SELECT DATABASE()") != _query(other, "SELECT DATABASE()")
    with mariadb_server.connect() as somebody:
        somebody.select_db(other.rpartition("/")[2])
        mariadb_server.drop_database(other)
        with pytest.raises(pymysql.err.OperationalError, match="Unknown database"):
            _query(other, "SELECT 1")


def test_it_serves_the_version_it_says(mariadb_server: MariaDBServer) -> None:
    if not mariadb_server.is_mariadb:
        pytest.skip("a MySQL")
    [(said,)] = mariadb_server.execute("SELECT VERSION()")
    assert str(said).startswith(".".join(map(str, mariadb_server.version)))


def test_settings_stop_crash_and_restart(local: MariaDBServer) -> None:
    with local as server:
        assert _query(server.url, "SELECT @@max_connections") == 17
        url = server.create_database()
        server.execute(f"CREATE TABLE {url.rpartition('/')[2]}.kept (n INT)")
        server.kill()
        assert server.pid is None
        with pytest.raises(pymysql.err.OperationalError):
            _query(url, "SELECT 1")
        server.restart()
        assert _query(url, "SELECT COUNT(*) FROM kept") == 0
        server.stop()
        with pytest.raises(pymysql.err.OperationalError):
            _query(url, "SELECT 1")


def test_an_external_server_cannot_be_stopped(mariadb_server: MariaDBServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCING_TEST_MYSQL_URL", mariadb_server.url)
    with start_mariadb() as server:
        assert server.url == mariadb_server.url
        assert server.version == mariadb_server.version
        for handle in (server.stop, server.kill, server.restart):
            with pytest.raises(ServerError, match="FENCING_TEST_MYSQL_URL"):
                handle()


def test_a_missing_binary_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mariadb, "find_mariadb_binary", lambda: None)
    with pytest.raises(ServerError, match="FENCING_TEST_MYSQL_URL"):
        start_mariadb(own=True, local=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to start MariaDB as somebody else")
def test_as_root_with_a_temporary_directory_that_only_root_can_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if mariadb.find_mariadb_binary() is None:
        pytest.skip("found no mariadbd")
    with start_mariadb(own=True, local=True) as server:
        assert _query(server.url, "SELECT 1") == 1
        assert server.pid is not None
        assert os.stat(f"/proc/{server.pid}").st_uid != 0
