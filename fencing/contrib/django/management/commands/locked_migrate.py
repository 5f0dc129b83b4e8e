"""``manage.py locked_migrate``: ``migrate`` by one of several replicas, under a lock that a guard checks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.core.management.commands.migrate import Command as Migrate
from django.db import connections, transaction

from fencing.contrib.django.coordinator import coordinator
from fencing.contrib.django.guard import DjangoGuard
from fencing.kernel.errors import FencingError, LeaseLost, NotAcquired, StaleFence, UnclaimedFence
from fencing.locks.lease import Lease

_CHANGES_ROWS = re.compile(r"\s*(INSERT|UPDATE|DELETE)\b", re.IGNORECASE)


class Command(Migrate):
    """``migrate`` under a lock, with a guard on each transaction."""

    help = (
        "Does what migrate does, by one process at a time: the others wait, and then find nothing left to do. A "
        "process whose lock was lost migrates no further."
    )

    def add_arguments(self, parser: Any) -> None:
        """Add the options of the lock to those of ``migrate``."""
        super().add_arguments(parser)
        parser.add_argument("--lock", help="the name of the lock; by default migrate: and the database's alias")
        parser.add_argument(
            "--wait", type=float, default=600.0, help="seconds to wait for the process that migrates (600)"
        )

    def handle(self, *args: Any, **options: Any) -> Any:
        """Wait for the lock, migrate, and release it."""
        alias, name, wait = options["database"], options.pop("lock"), options.pop("wait")
        name = name or f"migrate:{alias}"
        try:
            guard = DjangoGuard(alias)
            guard.create_tables()
            with (
                coordinator().hold(name, timeout=wait, guards=[guard]) as lease,
                connections[alias].execute_wrapper(CheckedStatements(guard, lease)),
            ):
                return super().handle(*args, **options)
        except NotAcquired as error:
            raise CommandError(f"another process has not finished its migration within {wait:g} s: {error}") from error
        except (LeaseLost, StaleFence, UnclaimedFence) as error:
            raise CommandError(
                f"this process lost the lock {name!r}, so it migrates no further: {error}. What it had committed "
                f"stays, and is noted in django_migrations. A migration without a transaction may be half done "
                f"(docs/recipes/django.md). Run locked_migrate again"
            ) from error
        except (FencingError, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from error


class CheckedStatements:
    """Puts a check before the first statement of each transaction of a connection: ``connection.execute_wrapper``.

    Outside a transaction, a statement that changes rows gets one of its own, as what notes a migration does. Others,
    such as each CREATE TABLE of MariaDB and MySQL, cannot be checked so. They are not sent where the lease has ended.

    The waits of a checked transaction have the project's own bounds, for a migration may take longer than a lease.
    """

    def __init__(self, guard: DjangoGuard, lease: Lease) -> None:
        self._guard = guard
        self._lease = lease
        self._is_asking = False

    def __call__(self, execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        """Execute a statement of a migration, or raise the guard's error."""
        connection, cursor = context["connection"], context["cursor"]
        if isinstance(cursor.cursor, RowsBeforeCommit):
            cursor.cursor = cursor.cursor.cursor  # the rows of its last statement are over
        if self._is_asking:
            return execute(sql, params, many, context)
        if connection.in_atomic_block:
            self._check()
            return execute(sql, params, many, context)
        self._lease.ensure_held()
        if not _CHANGES_ROWS.match(str(sql)):
            return execute(sql, params, many, context)
        with transaction.atomic(using=self._guard.using):
            self._check()
            result = execute(sql, params, many, context)
            if cursor.description is not None:
                # SQLite commits no transaction of a RETURNING whose rows are unread: "SQL statements in progress".
                cursor.cursor = RowsBeforeCommit(cursor.cursor)
            return result

    def _check(self) -> None:
        self._is_asking = True
        try:
            self._guard._check_first(self._lease)
        finally:
            self._is_asking = False


class RowsBeforeCommit:
    """A cursor of a driver whose rows were read before the commit. All else is the cursor's own."""

    def __init__(self, cursor: Any) -> None:
        self.cursor = cursor
        self._rows: Iterator[Any] = iter(cursor.fetchall())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cursor, name)

    def __iter__(self) -> Iterator[Any]:
        return self._rows

    def fetchone(self) -> Any:
        """Return the next row, or None."""
        return next(self._rows, None)

    def fetchmany(self, size: int | None = None) -> list[Any]:
        """Return the next rows."""
        return list(islice(self._rows, self.cursor.arraysize if size is None else size))

    def fetchall(self) -> list[Any]:
        """Return the rows that are left."""
        return list(self._rows)
