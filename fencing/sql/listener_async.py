"""The listener for asyncio: each event loop has a connection of its own. The twin of ``listener.py``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy.util import greenlet_spawn

from fencing.kernel import process
from fencing.kernel.waking import TaskWake
from fencing.kernel.workers import PerLoop
from fencing.locks.waiting import Enlist, Leave, Wait
from fencing.sql.listener import TICK_SECONDS
from fencing.sql.notifications import Subscription, Undelivered, keep_alive, new_probe
from fencing.sql.own_engine import OwnConnection, OwnEngine
from fencing.sql.table import Request
from fencing.sql.waiters import START_SECONDS, Waiter, Waiters


class AsyncListener:
    """The listeners of a coordinator for asyncio. A forked child has its own.

    Args:
        engine: the coordinator's.
        send: performs a request on another connection.
    """

    def __init__(self, engine: OwnEngine, send: Callable[[Request], Awaitable[Any]]) -> None:
        self._engine = engine
        # To collect those of a parent process might end its sessions.
        self._of_loops = PerLoop(lambda _: _OfLoop(engine, send), keeps_inherited=True)

    def is_waited_for(self, resource: str) -> bool:
        """Return whether a waiter for the resource asks as one at once. A hint."""
        return not self._engine.locks.notifies or resource in self._of_loops[asyncio.get_running_loop()].waiters

    async def perform(self, effect: Enlist | Wait | Leave) -> Waiter | None:
        """Add a waiter, wait until it must ask again, or remove it."""
        mine = self._of_loops[asyncio.get_running_loop()]
        if isinstance(effect, Enlist):
            return mine.enlist(effect)
        if isinstance(effect, Leave):
            mine.waiters.remove(effect.waiter, effect.free_at)
            return None
        mine.waiters.schedule(effect.waiter, effect.recheck)
        waiter: Waiter = effect.waiter
        until = process.now() + effect.seconds
        while (left := waiter.seconds_left(process.now(), until)) > 0:
            await waiter.waking.wait(left)
        waiter.is_notified = False
        return None

    async def close(self) -> None:
        """Stop listening in the running loop. Waiters ask again, and get the error that the coordinator is closed."""
        await self._of_loops[asyncio.get_running_loop()].close()


class _OfLoop:
    """The listener of one event loop."""

    def __init__(self, engine: OwnEngine, send: Callable[[Request], Awaitable[Any]]) -> None:
        self.waiters = Waiters(process.now)
        self._engine, self._send = engine, send
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def enlist(self, effect: Enlist) -> Waiter | None:
        if self.waiters.is_listening:
            waiter: Waiter = effect.waiter or Waiter(effect.resource, effect.token, TaskWake())
            self.waiters.add(waiter)
            return waiter
        if self._engine.locks.notifies and self.waiters.may_start() and self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._run())
        return None

    async def close(self) -> None:
        self._closed = True
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait([task], timeout=START_SECONDS)

    async def _run(self) -> None:
        failed, delivers = True, True
        try:
            await self._listen_on_connection()
            failed = False
        except Undelivered:
            delivers = False
        except Exception:  # noqa: BLE001 - whatever it is, waiters poll until a later attempt
            pass
        finally:
            self._task = None
            self.waiters.ended(failed=failed and not self._closed, delivers=delivers)

    async def _listen_on_connection(self) -> None:
        connection: OwnConnection | None = None
        subscription: Subscription | None = None
        try:
            async with asyncio.timeout(START_SECONDS):
                connection = await greenlet_spawn(self._engine.open, START_SECONDS)
                await greenlet_spawn(connection.perform, Request("listen", {}, START_SECONDS))
                subscription = await self._subscribe(connection)
            self.waiters.started()
            while self.waiters.is_wanted():
                try:
                    async with asyncio.timeout(TICK_SECONDS):
                        await subscription.ended.wait()
                except TimeoutError:
                    continue
                raise ConnectionError("the connection broke")
            self.waiters.is_listening = False  # in one step with the check: no waiter enlists after it
        finally:
            if subscription is not None:
                subscription.end()
            if connection is not None:
                connection.hang_up()

    async def _subscribe(self, connection: OwnConnection) -> Subscription:
        probe, delivered = new_probe(), asyncio.Event()

        def on_text(text: str) -> None:
            if text == probe:
                delivered.set()
            else:
                self.waiters.on_notification(text)

        subscription = Subscription(connection.driver_connection, on_text)
        keep_alive(connection.driver_connection)
        try:
            await subscription.begin()
            await self._send(Request("notify", {"resource": probe}, START_SECONDS / 2))
            try:
                async with asyncio.timeout(START_SECONDS / 2):
                    await delivered.wait()
            except TimeoutError:
                raise Undelivered from None
        except BaseException:
            subscription.end()
            raise
        return subscription
