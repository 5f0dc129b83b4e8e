"""A user's program, as type checkers see it: `make wheel` holds it against the installed package. It is never run."""

from __future__ import annotations

import asyncio
import io
import os
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import assert_type

import httpx2
import redis
import redis.asyncio
from obstore.store import S3Store
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from fencing import (
    AsyncFencedLock,
    AsyncLease,
    AsyncRedisCoordinator,
    AsyncSlots,
    Fence,
    FencedLock,
    ForcedRelease,
    Holder,
    Lease,
    LeaseLost,
    Mark,
    NotAcquired,
    OutcomeUnknown,
    RedisCoordinator,
    RedlockCoordinator,
    Slots,
    SQLCoordinator,
    StaleFence,
    StaleRead,
    hold_all,
)
from fencing.compat import AsyncRedisPyLock, RedisPyLock
from storage_guards import (
    AsyncFileGuard,
    AsyncHTTPGuard,
    AsyncMemoryGuard,
    AsyncObjectStoreGuard,
    AsyncPsycopgGuard,
    AsyncPublication,
    AsyncRedisGuard,
    AsyncRedisTransaction,
    AsyncSQLAlchemyGuard,
    AsyncStream,
    Entry,
    FencingMiddleware,
    FileGuard,
    FileTransaction,
    HTTPGuard,
    MemoryGuard,
    ObjectStoreGuard,
    ProbeReport,
    PsycopgGuard,
    Publication,
    PublicationDiff,
    PublicationFound,
    RedisGuard,
    RedisTransaction,
    SQLAlchemyGuard,
    StoredObject,
    Stream,
    UploadFound,
    VerifyReport,
    WSGIFencingMiddleware,
    fenced,
)
from storage_guards.http import Problem, fence_for, fences, header_of, problem_of


class Unit(Session):
    pass


def sessions_and_upkeep(guard: SQLAlchemyGuard, plain: PsycopgGuard, lease: Lease) -> None:
    with guard.session(lease) as session:
        assert_type(session, Session)
    with guard.session(lease, claim=True, factory=sessionmaker(class_=Unit)) as unit:
        assert_type(unit, Unit)
    with guard.session(lease, factory=scoped_session(sessionmaker(class_=Unit))) as unit:
        assert_type(unit, Unit)
    for each in (guard, plain):
        assert_type(each.prune(below=5, older_than=1.5), int)
        assert_type(each.verify(), VerifyReport)


async def async_sessions_and_upkeep(guard: AsyncSQLAlchemyGuard, plain: AsyncPsycopgGuard, lease: AsyncLease) -> None:
    async with guard.session(lease) as session:
        assert_type(session, AsyncSession)
    async with guard.session(lease, factory=async_sessionmaker()) as session:
        assert_type(session, AsyncSession)
    assert_type(await guard.prune(older_than=1.5), int)
    assert_type(await plain.prune(below=5), int)
    assert_type((await guard.verify()).database, str)
    assert_type((await plain.verify()).findings[0].change, str)


def count(connection: Connection) -> int:
    return int(connection.execute(text("SELECT COUNT(*) FROM t")).scalar_one())


async def async_count(connection: AsyncConnection) -> int:
    return int((await connection.execute(text("SELECT COUNT(*) FROM t"))).scalar_one())


def work() -> int:
    engine = create_engine("postgresql+psycopg://localhost/shop")
    guard = SQLAlchemyGuard(engine)
    guard.create_tables()
    with RedisCoordinator(
        redis.Redis(), replicas=1, prefix="shop:", ttl=10, guards=[guard, MemoryGuard()], max_lifetime=60
    ) as coordinator:
        assert_type(coordinator.lock("r"), FencedLock)
        assert_type(coordinator.try_acquire("r"), Lease | None)
        with coordinator.hold("r", timeout=5, max_waiters=100) as lease:
            assert_type(lease, Lease)
            assert_type(lease.lost, threading.Event)
            assert_type(lease.fence.number, int)
            lease.on_lost(report)
            with guard.begin(lease) as connection:
                assert_type(connection, Connection)
            assert_type(guard.write(lease, text("UPDATE t SET a = :a"), {"a": 1}), int)
            assert_type(guard.mark("r"), Mark | None)
            assert_type(guard.run(lease, count), int)
            with Session(engine) as session:
                guard.advance(session, lease)
                session.commit()

        @coordinator.hold("r", timeout=5)
        def decorated(number: int) -> str:
            return str(number)

        assert_type(decorated(1), str)
        with coordinator.hold("r", timeout=5, ttl=60, owner="this call") as lease:
            assert_type(lease, Lease)
        slots = coordinator.slots("gpu", 4, ttl=30)
        assert_type(slots, Slots)
        with slots.hold(timeout=5) as of_slot:
            assert_type(of_slot, Lease)
            assert_type(of_slot.slot, int)
        assert_type(slots.try_acquire(), Lease | None)
        with coordinator.hold_all(["r", "s"], timeout=5) as leases:
            assert_type(leases, tuple[Lease, ...])
        for resource, holder in coordinator.holders("orders:*"):
            assert_type(resource, str)
            assert_type(holder, Holder)
            assert_type(holder.waiting, int | None)

        @coordinator.locked("orders:{number}", timeout=5)
        def ship(lease: Lease, number: int, urgent: bool = False) -> str:
            return f"{lease.fence} {number} {urgent}"

        @coordinator.locked("all orders", reentrant=True)
        def count_orders(urgent: bool) -> int:
            return int(urgent)

        @coordinator.locked("report:{day}", busy="skip")
        def write_report(lease: Lease, day: str) -> str:
            return day

        @coordinator.locked("report:{day}", busy=lambda error: error.waited)
        def count_lines(lease: Lease, day: str) -> str:
            return day

        assert_type(count_lines("2026-11-23"), str | float)
        assert_type(write_report("2026-11-23"), str | None)
        coordinator.locked("r", busy="wait")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
        assert_type(ship(42, urgent=True), str)
        assert_type(count_orders(True), int)
    lock = FencedLock(redis.Redis(), "r", ttl=3, guards=[guard], renew=False)
    with hold_all([lock, FencedLock(redis.Redis(), "s")]) as leases:
        assert_type(leases, tuple[Lease, ...])
    try:
        lease = lock.acquire(timeout=0)
    except NotAcquired as error:
        assert_type(error.owner, str | None)
        return 1
    assert_type(lock.holder(), Holder | None)
    assert_type(lock.force_release(), ForcedRelease)
    text_of_fence = str(lease.detach())
    adopted = lock.adopt(Fence.parse(text_of_fence))
    try:
        guard.claim(adopted.fence)
    except StaleFence as error:
        assert_type(error.mark, Mark | None)
    except OutcomeUnknown as error:
        assert_type(error.seq, int)
    assert_type(adopted.release(), bool)
    return 0


def moved(client: redis.Redis, guard: SQLAlchemyGuard) -> None:
    lock = RedisPyLock(client, "orders:42", timeout=10, guards=[guard], renew=True)
    assert_type(lock.acquire(blocking_timeout=5), bool)
    assert_type(lock.fence, Fence)
    assert_type(lock.lease, Lease)
    with lock as held:
        assert_type(guard.write(held.lease, text("UPDATE t SET a = 1")), int)


async def moved_async(client: redis.asyncio.Redis) -> None:
    async with AsyncRedisPyLock(client, "orders:42", timeout=10) as held:
        assert_type(held.lease, AsyncLease)
    assert_type(await held.acquire(), bool)


def publish() -> None:
    guard = ObjectStoreGuard(S3Store("bucket"), prefix="fencing/", timeout=5, upload_timeout=30)
    assert_type(guard.verify(), ProbeReport)
    FencedLock(create_engine("sqlite:///locks.db"), "r")
    AsyncFencedLock(create_async_engine("sqlite+aiosqlite:///locks.db"), "r")
    FencedLock("sqlite:///locks.db", "r")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(RedlockCoordinator([redis.Redis() for _ in range(3)], ttl=5, longest_ttl=10).acquire("r"), Lease)
    assert_type(SQLCoordinator(create_engine("sqlite:///locks.db"), ttl=5).acquire("r"), Lease)
    with FencedLock(redis.Redis(), "r", guards=[guard]).hold() as lease:
        before = guard.read("r")
        assert_type(before, Publication | None)
        bodies = {"a.csv": b"1", "b.csv": Path("b.csv"), "c.csv": [b"2", b"3"]}
        published = guard.publish(lease, bodies, replacing=before, progress=lambda name, sent, total: print(name, sent))
        assert_type(published, Publication)
        assert_type(published["a.csv"], Entry)
        guard.publish(lease, {**published, "d.csv": b"4"}, replacing=published)
        guard.publish(lease.fence, {"only.csv": b"5"}, claim=True)
        assert_type(guard.publications("r"), list[PublicationFound])
        if (yesterday := guard.read("r", at=datetime(2026, 1, 30, tzinfo=UTC))) is not None:
            assert_type(published.diff(yesterday), PublicationDiff)
            assert_type(guard.restore(lease, yesterday, replacing=published), Publication)
        assert_type(guard.collect(lease, keep=2, older_than=3600, dry_run=True), list[UploadFound])
        stored = guard.get("today.csv")
        assert_type(stored, StoredObject | None)
        try:
            assert_type(guard.write(lease, "today.csv", b"6", replacing=stored), StoredObject)
        except StaleRead as stale:
            assert_type(stale.key, str | None)
        except OutcomeUnknown as unknown:
            assert_type(guard.landed(unknown), bool | None)
        guard.delete(lease)
        assert_type(published.urls(["a.csv"], base="s3a://bucket"), dict[str, str])
        assert_type(published.signed_urls(60), dict[str, str])
        file: io.BufferedIOBase = published.open("a.csv")
        assert_type(file.seek(-3, os.SEEK_END), int)
    with guard.open("r", "a.csv") as stream:
        assert_type(stream, Stream)
        for chunk in stream:
            assert_type(chunk, bytes)


async def publish_async(body: AsyncIterator[bytes]) -> None:
    guard = AsyncObjectStoreGuard(S3Store("bucket"))
    async with AsyncFencedLock(redis.asyncio.Redis(), "r", guards=[guard]).hold() as lease:
        before = await guard.read("r")
        assert_type(before, AsyncPublication | None)
        published = await guard.publish(lease, {"a.csv": body}, replacing=before)
        assert_type(published, AsyncPublication)
        assert_type(await published.read("a.csv"), bytes)
        assert_type(await guard.write(lease, "today.csv", b"6", replacing=None), StoredObject)
    async with await guard.open("r", "a.csv") as stream:
        assert_type(stream, AsyncStream)
        assert_type(await stream.seek(-3, os.SEEK_END), int)
        async for chunk in stream:
            assert_type(chunk, bytes)


def report(error: LeaseLost) -> None:
    print(error.reason, error.fence)


async def work_async() -> None:
    guard = AsyncSQLAlchemyGuard(create_async_engine("postgresql+psycopg://localhost/shop"))
    await guard.create_tables()
    client = redis.asyncio.Redis()
    async with AsyncRedisCoordinator(client, guards=[guard, AsyncMemoryGuard()]) as coordinator:
        async with coordinator.hold("r", timeout=5, cancel_on_loss=True) as lease:
            assert_type(lease, AsyncLease)
            assert_type(lease.lost, asyncio.Event)
            async with guard.begin(lease, claim=True) as connection:
                assert_type(connection, AsyncConnection)
            assert_type(await guard.write(lease, text("UPDATE t SET a = 1")), int)
            assert_type(await guard.run(lease, lease.fence, async_count, attempts=3), int)
        slots = coordinator.slots("gpu", 4)
        assert_type(slots, AsyncSlots)
        async with slots.hold(timeout=5, cancel_on_loss=True) as of_slot:
            assert_type(of_slot, AsyncLease)
        assert_type(await slots.acquire(timeout=5), AsyncLease)
        async with coordinator.hold_all(["r", "s"], timeout=5, ttl=60) as leases:
            assert_type(leases, tuple[AsyncLease, ...])
        async for resource, holder in coordinator.holders("orders:*"):
            assert_type((resource, holder), tuple[str, Holder])

        @coordinator.locked("orders:{number}", timeout=5, cancel_on_loss=True)
        async def ship(lease: AsyncLease, number: int) -> str:
            return f"{lease.fence} {number}"

        @coordinator.locked("report:{day}", timeout=5, busy="skip")
        async def write_report(lease: AsyncLease, day: str) -> str:
            return day

        assert_type(await write_report("2026-11-23"), str | None)
        assert_type(await ship(42), str)
        lock = AsyncFencedLock(client, "r")
        async with lock.hold() as lease:
            await lease.renew()
        async with hold_all([lock, AsyncFencedLock(client, "s")]) as leases:
            assert_type(leases, tuple[AsyncLease, ...])
        assert_type(await lock.try_acquire(), AsyncLease | None)


if __name__ == "__main__":
    asyncio.run(work_async())
    raise SystemExit(work())


def data_in_redis() -> None:
    guard = RedisGuard(redis.Redis(), timeout=5)
    RedisGuard(redis.RedisCluster("localhost"))
    RedisGuard(redis.asyncio.Redis())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with FencedLock(redis.Redis(), "r", guards=[guard]).hold() as lease:
        replies = guard.write(lease, ("SET", "key", b"value", "EX", 60), ("INCRBYFLOAT", b"number", 1.5))
        assert_type(len(replies), int)
        guard.script(lease.fence, "return redis.call('INCR', KEYS[1])", keys=["number"], args=[1, "2", b"3"])
        with guard.begin(lease, claim=True) as transaction:
            assert_type(transaction, RedisTransaction)
            transaction.write("SET", "key", int(transaction.read("GET", "number") or 0))
    assert_type(guard.mark("r"), Mark | None)


async def data_in_redis_async(error: OutcomeUnknown) -> None:
    guard = AsyncRedisGuard(redis.asyncio.Redis())
    async with AsyncFencedLock(redis.asyncio.Redis(), "r", guards=[guard]).hold() as lease:
        await guard.write(lease, ("SET", "key", 1))
        async with guard.begin(lease) as transaction:
            assert_type(transaction, AsyncRedisTransaction)
            await transaction.read("GET", "key")
            transaction.write("DEL", "key")
    assert_type(await guard.landed(error), bool | None)


def files(fence: Fence) -> None:
    guard = FileGuard("folder", timeout=5)
    with FencedLock(redis.Redis(), "r", guards=[guard]).hold() as lease, guard.begin(lease) as file:
        assert_type(file, FileTransaction)
        file.data = (file.data or b"") + b"more"
    guard.write(fence, b"1", claim=True)
    assert_type(guard.publish(fence, {"a": b"1", "b": Path("b")}), Path)
    assert_type(guard.read("r"), bytes | None)
    assert_type(guard.path("r"), Path | None)


async def files_async(fence: Fence) -> None:
    guard = AsyncFileGuard(Path("folder"))
    async with guard.begin(fence) as file:
        assert_type(file.data, bytes | None)
    assert_type(await guard.publish(fence, {"a": b"1"}), Path)


def over_http(environ: dict[str, object]) -> None:
    client = httpx2.Client(base_url="https://shop.internal")
    guard = HTTPGuard("/fencing/claims", client, timeout=5)
    HTTPGuard("/fencing/claims", httpx2.AsyncClient())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with FencedLock(redis.Redis(), "r", guards=[guard]).hold() as lease, fenced(client, lease):
        assert_type(client.get("/orders/42"), httpx2.Response)
        assert_type(header_of(lease, lease.fence), str)
    assert_type(fences([("Fencing-Token", "x")]), tuple[Fence, ...])
    assert_type(fence_for(environ, "r"), Fence)
    assert_type(problem_of(ValueError(), environ), Problem | None)
    sql = SQLAlchemyGuard(create_engine("sqlite://"))
    WSGIFencingMiddleware(lambda environ, start_response: [b""], sql, claims_path=None, gate=True)
    WSGIFencingMiddleware(lambda environ, start_response: [b""], AsyncMemoryGuard())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def over_http_async(app: FencingMiddleware) -> None:
    client = httpx2.AsyncClient(base_url="https://shop.internal")
    guard = AsyncHTTPGuard("/fencing/claims", client)
    async with AsyncFencedLock(redis.asyncio.Redis(), "r", guards=[guard]).hold() as lease:
        with fenced(client, lease):
            assert_type(await client.get("/orders/42"), httpx2.Response)
    FencingMiddleware(app, AsyncMemoryGuard(), gate=True)
