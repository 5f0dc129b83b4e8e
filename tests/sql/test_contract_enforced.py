"""Every guard behaviour on PostgreSQL where the database enforces: the role has no other way than the functions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from psycopg.errors import InsufficientPrivilege
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from storage_guards.testing import GuardContract
from tests.psycopg import test_contract as test_psycopg_guards
from tests.sql import test_contract as test_guards
from tests.support.enforced import Roles, dsn, two_roles


@contextmanager
def enforced(admin_url: str) -> Iterator[Roles]:
    with two_roles(admin_url) as roles:
        guard = roles.owners_guard()
        guard.create_tables()
        with roles.as_owner() as connection:
            connection.execute(test_psycopg_guards.CREATE)
        guard.enforce("counters", resource="name", role=roles.app)
        yield roles


class _Enforced(GuardContract):
    roles: Roles
    create_statement = text("SELECT 1")  # the table is there, and the application may make none

    def write_unguarded(self, resource: str, value: int) -> Any:
        self.roles.past_the_trigger("counters", test_psycopg_guards.WRITE, [resource, value])

    def test_the_database_enforces(self) -> None:
        """Or else all the others prove nothing."""
        with self.roles.as_app() as connection:
            with pytest.raises(InsufficientPrivilege, match="has not passed the check for the resource 'r'"):
                connection.execute(test_psycopg_guards.WRITE, ["r", 1])
            with pytest.raises(InsufficientPrivilege, match="permission denied for table fencing_marks"):
                connection.execute("UPDATE fencing_marks SET seq = seq")


class TestPostgreSQL(_Enforced, test_guards.TestPostgreSQL):
    @pytest.fixture(autouse=True)
    def _engine(self, postgres_url: str) -> Iterator[None]:
        with enforced(postgres_url) as self.roles:
            self.engine = create_engine(self.roles.app_url, isolation_level=self.level)
            yield
            self.engine.dispose()


@pytest.mark.thorough
class TestPostgreSQLSerializable(TestPostgreSQL):
    level = "SERIALIZABLE"


@pytest.mark.thorough
class TestAsyncPostgreSQL(_Enforced, test_guards.TestAsyncPostgreSQL):
    @pytest.fixture(autouse=True)
    def _engine(self, postgres_url: str) -> Iterator[None]:
        with enforced(postgres_url) as self.roles:
            url = self.roles.app_url.replace("+psycopg", f"+{self.driver}")
            self.engine = create_async_engine(url, isolation_level=self.level)
            yield
            self.call(self.engine.dispose)


@pytest.mark.thorough
class TestAsyncpg(TestAsyncPostgreSQL):
    driver = "asyncpg"


class TestAsyncpgRepeatableRead(TestAsyncpg):
    level = "REPEATABLE READ"


class _EnforcedPsycopg(_Enforced, test_psycopg_guards._Psycopg):
    @pytest.fixture(autouse=True)
    def _database(self, postgres_url: str) -> Iterator[None]:
        with enforced(postgres_url) as self.roles:
            self.dsn = dsn(self.roles.app_url)
            with self.sources():
                yield


@pytest.mark.thorough
class TestPool(_EnforcedPsycopg, test_psycopg_guards.TestPool):
    pass


@pytest.mark.thorough
class TestSerializable(_EnforcedPsycopg, test_psycopg_guards.TestSerializable):
    pass


@pytest.mark.thorough
class TestOneConnection(_EnforcedPsycopg, test_psycopg_guards.TestOneConnection):
    pass


@pytest.mark.thorough
class TestConnectionString(_EnforcedPsycopg, test_psycopg_guards.TestConnectionString):
    pass


class TestAsyncPool(_EnforcedPsycopg, test_psycopg_guards.TestAsyncPool):
    pass


@pytest.mark.thorough
class TestBesideSQLAlchemyGuard(_EnforcedPsycopg, test_psycopg_guards.TestBesideSQLAlchemyGuard):
    """Each excludes the other."""

    def _second(self) -> GuardContract:
        second: Any = super()._second()
        second.create_statement = text("SELECT 1")
        return second  # type: ignore[no-any-return]


@pytest.mark.thorough
class TestBesideTheOwner(TestPool):
    """The second guard is the owner's, who changes the table directly: the same rule, and the trigger is content."""

    def _second(self) -> GuardContract:
        assert self.guard is not None
        second = test_psycopg_guards._Psycopg()
        second.dsn = dsn(self.roles.owner_url)
        return second
