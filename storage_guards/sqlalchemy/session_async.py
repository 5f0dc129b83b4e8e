"""The async twin of ``storage_guards/sqlalchemy/session.py``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session, async_sessionmaker

from storage_guards.sqlalchemy.session import UnitOfWork, leave_scope
from storage_guards.sqlalchemy.transaction import SQLAlchemyTransaction

MAKERS = (async_sessionmaker, async_scoped_session)
"""The factories of async sessions."""


@asynccontextmanager
async def async_session_on(
    connection: AsyncConnection, transaction: SQLAlchemyTransaction, factory: Any
) -> AsyncIterator[Any]:
    """Make an async session, as :func:`session_on` does."""
    session: AsyncSession = (factory or async_sessionmaker())(bind=connection, join_transaction_mode="control_fully")
    plain = connection.sync_connection
    if plain is None:
        raise AssertionError("a connection that was not begun")
    try:
        work = UnitOfWork(session.sync_session, plain, transaction)
        try:
            yield session
        finally:
            work.allow_all()
    finally:
        try:
            await session.close()  # without I/O, because its transaction is over; so it cannot be cancelled
        finally:
            leave_scope(factory, session)
