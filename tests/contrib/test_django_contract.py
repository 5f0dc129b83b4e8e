"""The contract of guards, on Django's own connections to each database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from django.db import connections
from django.db.utils import OperationalError
from psycopg import IsolationLevel

from fencing.contrib.django import DjangoGuard
from fencing.kernel.errors import GuardUnavailable
from fencing.kernel.fence import Fence
from storage_guards.testing import GuardContract
from tests.support.django_project import added
from tests.support.enforced import two_roles

CREATE = "CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL)"
CREATE_MARIADB = "CREATE TABLE IF NOT EXISTS counters (name VARBINARY(512) PRIMARY KEY, value INT NOT NULL)"
READ = "SELECT value FROM counters WHERE name = %s"
WRITE = "INSERT INTO counters VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
WRITE_MARIADB = "INSERT INTO counters VALUES (%s, %s) ON DUPLICATE KEY UPDATE value = VALUES(value)"


@contextmanager
def closed_in_threads(alias: str) -> Iterator[None]:
    """Close the connection of a thread other than the first, as Django does where a request ends."""
    try:
        yield
    except OperationalError as error:  # the application, too, must be ready for these refusals
        state = getattr(error.__cause__, "sqlstate", None) or (error.args or [0])[0]
        if state not in ("40001", "40P01", 1020, 1205, 1213) and "locked" not in str(error):
            raise
        raise GuardUnavailable("the transaction was undone; retry") from error
    finally:
        if threading.current_thread() is not threading.main_thread():
            connections[alias].close()


class ClosingGuard(DjangoGuard):
    def claim(self, *holders: Any, timeout: float | None = None) -> None:
        with closed_in_threads(self.using):
            super().claim(*holders, timeout=timeout)

    def mark(self, resource: str) -> Any:
        with closed_in_threads(self.using):
            return super().mark(resource)


class DjangoContract(GuardContract):
    database: str
    options: Any = {}  # noqa: RUF012 - nobody changes it
    enforced = False
    alias: str

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _database(cls, request: pytest.FixtureRequest) -> Iterator[None]:
        with ExitStack() as stack:
            if cls.database == "sqlite":
                url = f"sqlite:///{request.getfixturevalue('tmp_path_factory').mktemp('django')}/data.db"
            else:
                url = stack.enter_context(request.getfixturevalue(f"{cls.database}_databases").one())
            cls.alias = cls.__name__
            if cls.enforced:
                roles = stack.enter_context(two_roles(url))
                guard = roles.owners_guard()
                guard.create_tables()
                with roles.as_owner() as connection:
                    connection.execute(CREATE)
                guard.enforce("counters", resource="name", role=roles.app)
                url = roles.app_url
                cls.roles = roles
            stack.enter_context(added(cls.alias, url, **cls.options))
            if not cls.enforced:
                DjangoGuard(cls.alias).create_tables()
                DjangoGuard(cls.alias).create_tables()
                cls._execute(CREATE_MARIADB if cls.database == "mariadb" else CREATE)
            yield

    roles: Any = None

    @classmethod
    def _execute(cls, text: str, *values: Any) -> Any:
        with closed_in_threads(cls.alias), connections[cls.alias].cursor() as cursor:
            cursor.execute(text, values or None)
            return cursor.fetchone() if cursor.description else None

    def make(self) -> Any:
        return ClosingGuard(self.alias)

    def read(self, resource: str) -> int:
        found = self._execute(READ, self._stored(resource))
        return found[0] if found else 0

    def _stored(self, resource: str) -> Any:
        return resource.encode() if self.database == "mariadb" else resource

    def write_unguarded(self, resource: str, value: int) -> None:
        if self.roles is not None:
            self.roles.past_the_trigger("counters", WRITE, [resource, value])
            return
        self._execute(self._text, self._stored(resource), value)

    @property
    def _text(self) -> str:
        return WRITE_MARIADB if self.database == "mariadb" else WRITE

    @contextmanager
    def _block(self, fence: Fence, options: Any) -> Iterator[Any]:
        with (
            closed_in_threads(self.alias),
            self.guard.begin(fence, **options) as connection,
            connection.cursor() as cursor,
        ):
            yield cursor

    def write(self, fence: Fence, resource: str, value: int, **options: Any) -> None:
        with self._block(fence, options) as cursor:
            cursor.execute(self._text, [self._stored(resource), value])

    def add(self, fence: Fence, resource: str, between: Callable[[], Any], **options: Any) -> None:
        with self._block(fence, options) as cursor:
            cursor.execute(READ, [self._stored(resource)])
            row = cursor.fetchone()
            between()
            cursor.execute(self._text, [self._stored(resource), (row[0] if row else 0) + 1])


@pytest.mark.thorough
class TestPostgreSQL(DjangoContract):
    database = "postgres"


@pytest.mark.thorough
class TestPostgreSQLByServerSideBinding(DjangoContract):
    database = "postgres"
    options = {"OPTIONS": {"server_side_binding": True}}  # noqa: RUF012


@pytest.mark.thorough
class TestPostgreSQLSerializable(DjangoContract):
    database = "postgres"
    options = {"OPTIONS": {"isolation_level": IsolationLevel.SERIALIZABLE}}  # noqa: RUF012


@pytest.mark.thorough
class TestEnforcedPostgreSQL(DjangoContract):
    database = "postgres"
    enforced = True


@pytest.mark.thorough
class TestMariaDB(DjangoContract):
    database = "mariadb"


@pytest.mark.thorough
class TestMariaDBRepeatableRead(DjangoContract):
    database = "mariadb"
    options = {"OPTIONS": {"isolation_level": "repeatable read"}}  # noqa: RUF012


@pytest.mark.thorough
class TestSQLite(DjangoContract):
    database = "sqlite"


@pytest.mark.thorough
class TestSQLiteThatBeginsImmediately(DjangoContract):
    database = "sqlite"
    options = {"OPTIONS": {"transaction_mode": "IMMEDIATE"}}  # noqa: RUF012
