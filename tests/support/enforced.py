"""A database that enforces: an owner that runs the migrations, an application that may only use it, and real roles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg
from psycopg.sql import SQL, Identifier
from sqlalchemy import make_url

from storage_guards import PsycopgGuard

PASSWORD = "fencing"


class Roles(NamedTuple):
    """URLs (SQLAlchemy's, with psycopg) of one database, one for each role."""

    admin_url: str
    owner_url: str
    app_url: str

    @property
    def app(self) -> str:
        """The application's role."""
        return str(make_url(self.app_url).username)

    @property
    def owner(self) -> str:
        return str(make_url(self.owner_url).username)

    def as_admin(self) -> psycopg.Connection[Any]:
        return connect(self.admin_url)

    def as_owner(self) -> psycopg.Connection[Any]:
        return connect(self.owner_url)

    def as_app(self) -> psycopg.Connection[Any]:
        return connect(self.app_url)

    def owners_guard(self) -> PsycopgGuard:
        """Connects for each operation."""
        return PsycopgGuard(dsn(self.owner_url))

    def apps_guard(self, **options: Any) -> PsycopgGuard:
        return PsycopgGuard(dsn(self.app_url), **options)

    def past_the_trigger(self, table: Any, statement: Any, values: Any = ()) -> None:
        """The operators' way round, as in docs/guards/enforcement.md."""
        with self.as_owner() as connection, connection.transaction():
            connection.execute(SQL("ALTER TABLE {} DISABLE TRIGGER fencing_enforced").format(SQL(table)))
            connection.execute(statement, values)
            connection.execute(SQL("ALTER TABLE {} ENABLE ALWAYS TRIGGER fencing_enforced").format(SQL(table)))


def dsn(url: str) -> str:
    return url.replace("postgresql+psycopg:", "postgresql:")


def connect(url: str) -> psycopg.Connection[Any]:
    """In autocommit mode: a transaction is what `with connection.transaction()` says."""
    return psycopg.connect(dsn(url), autocommit=True, connect_timeout=60)


@contextmanager
def two_roles(admin_url: str) -> Iterator[Roles]:
    """The roles of a test's own database; dropped afterwards, with all they own there."""
    url = make_url(admin_url)
    names = [f"{url.database}_{role}" for role in ("owner", "app")]
    urls = [url.set(username=name, password=PASSWORD).render_as_string(hide_password=False) for name in names]
    owner, app = map(Identifier, names)
    with connect(admin_url) as admin:
        for role in (owner, app):
            admin.execute(SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(role, PASSWORD))
        admin.execute(SQL("GRANT CREATE ON SCHEMA public TO {}").format(owner))
        admin.execute(SQL("GRANT CREATE ON DATABASE {} TO {}").format(Identifier(str(url.database)), owner))
        admin.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        # What the owner makes may be used by the application.
        rights = SQL(
            "ALTER DEFAULT PRIVILEGES FOR ROLE {} GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON TABLES TO {}"
        )
        admin.execute(rights.format(owner, app))
    try:
        yield Roles(admin_url, *urls)
    finally:
        with connect(admin_url) as admin:
            for role in (app, owner):
                admin.execute(SQL("DROP OWNED BY {} CASCADE").format(role))
                admin.execute(SQL("DROP ROLE {}").format(role))
