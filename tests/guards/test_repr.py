"""Guards show where their data is, without secrets."""

from __future__ import annotations

import asyncio

import psycopg_pool
import pytest
from obstore.store import MemoryStore, S3Store
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from storage_guards import (
    AsyncMemoryGuard,
    AsyncPsycopgGuard,
    AsyncSQLAlchemyGuard,
    MemoryGuard,
    ObjectStoreGuard,
    PsycopgGuard,
    SQLAlchemyGuard,
)

URL = "postgresql+psycopg://worker:secret@db.example:5432/shop"
CONNINFO = "postgresql://worker:secret@db.example:5432/shop?application_name=x"


def test_sql() -> None:
    shown = "on postgresql+psycopg://worker:***@db.example:5432/shop"
    assert repr(SQLAlchemyGuard(create_engine(URL))) == f"<SQLAlchemyGuard {shown}, timeout 10 s>"
    guard = AsyncSQLAlchemyGuard(create_async_engine(URL), schema="locks", timeout=2.5)
    assert repr(guard) == f"<AsyncSQLAlchemyGuard {shown}, schema 'locks', timeout 2.5 s>"


def test_psycopg() -> None:
    shown = "on host=db.example port=5432 dbname=shop user=worker, timeout 10 s>"
    assert repr(PsycopgGuard(CONNINFO)) == f"<PsycopgGuard {shown}"
    pool = psycopg_pool.ConnectionPool(CONNINFO, open=False)
    assert repr(PsycopgGuard(pool)) == f"<PsycopgGuard {shown}"

    async def connect() -> None: ...

    assert repr(AsyncPsycopgGuard(connect)) == (  # type: ignore[arg-type]
        "<AsyncPsycopgGuard on test_psycopg.<locals>.connect, timeout 10 s>"
    )


@pytest.mark.parametrize("secret", ["secret"])
def test_objects_and_memory(secret: str) -> None:
    store = S3Store("bucket", access_key_id="key", secret_access_key=secret, region="us-east-1")
    assert repr(ObjectStoreGuard(store)) == (
        "<ObjectStoreGuard on S3Store(bucket=\"bucket\"), prefix 'fencing/', timeout 10 s>"
    )
    assert repr(ObjectStoreGuard(MemoryStore())) == (
        "<ObjectStoreGuard on obstore.store.MemoryStore, prefix 'fencing/', timeout 10 s>"
    )
    assert repr(MemoryGuard(timeout=3)) == "<MemoryGuard, timeout 3 s>"
    assert asyncio.run(_async_repr()) == "<AsyncMemoryGuard, timeout 10 s>"


async def _async_repr() -> str:
    return repr(AsyncMemoryGuard())
