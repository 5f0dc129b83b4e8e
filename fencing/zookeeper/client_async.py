"""The coordinator's own session in ZooKeeper for asyncio. One serves all event loops: kazoo has threads of its own."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

from fencing.kernel import process
from fencing.kernel.effects import finish
from fencing.kernel.retry import LEAST_SECONDS
from fencing.zookeeper.calls import Ask, Leave, Reply, Wait
from fencing.zookeeper.session import Session, Watching
from fencing.zookeeper.sessions import Sessions
from fencing.zookeeper.waiters import Watch


class AsyncClient(Sessions):
    """The session of a coordinator for asyncio."""

    async def perform(self, effect: Ask | Wait | Leave) -> Any:
        """Make requests, or wait. A cancellation of requests is delivered after their replies.

        Raises:
            NoReply: no usable reply; another attempt may succeed.
            CoordinatorUnavailable: ZooKeeper refused; another attempt would not help.
            RuntimeError: the coordinator is closed. Make a new one.
        """
        if isinstance(effect, Leave):
            return self.end_watch(effect.waiter)
        if self.closed:
            return self.after_closing(effect)
        session = self.current()
        if self.closed:  # meanwhile
            return self.after_closing(effect)
        return await (finish(self._ask(session, effect)) if isinstance(effect, Ask) else self._wait(session, effect))

    async def _ask(self, session: Session, ask: Ask) -> Reply:
        sent_at = process.now()
        until = time.monotonic() + ask.timeout
        await self._wait_for_connection(session, ask.timeout)
        sent_in = session.id
        results = self.send(session, ask)
        try:
            async with asyncio.timeout(max(until - time.monotonic(), LEAST_SECONDS)):
                for result in reversed(results):  # the last one comes last
                    if not result.ready():
                        await _called(result)
        except TimeoutError as error:
            raise self.no_reply(session, ask.timeout) from error
        return self.reply_of(session, ask, results, sent_at, sent_in)

    async def _wait_for_connection(self, session: Session, seconds: float) -> None:
        if not session.connected:
            settled = asyncio.Event()
            wake = partial(_set, asyncio.get_running_loop(), settled, None)
            session.waiting.add(wake)
            try:
                async with asyncio.timeout(max(seconds, LEAST_SECONDS)):
                    while not (session.connected or session.has_ended):
                        await settled.wait()
                        settled.clear()
            except TimeoutError:
                pass
            finally:
                session.waiting.discard(wake)
            self.check_connected(session)

    async def _wait(self, session: Session, wait: Wait) -> bool:
        watch: Watch = wait.waiter
        woken = asyncio.Event()
        self.end_watch(watch)
        try:
            async with asyncio.timeout(max(wait.seconds, LEAST_SECONDS)):
                await self._wait_for_connection(session, wait.seconds)
                watch.request = Watching(wait.path, partial(_set, asyncio.get_running_loop(), woken))
                self.waits.add(watch.request.watcher)
                if self.closed:  # read after the line above: the closing wakes all that are in there
                    woken.set()
                result = session.send(watch.request)
                if not result.ready():
                    await _called(result)
                if not self.is_gone(result):
                    await woken.wait()
            return True
        except TimeoutError:
            return False
        finally:
            self.end_watch(watch)

    async def close(self) -> None:
        """End the session."""
        await asyncio.to_thread(self.end)


async def _called(result: Any) -> None:
    """Wait until a result of kazoo is there."""
    called = asyncio.Event()
    result.rawlink(partial(_set, asyncio.get_running_loop(), called))
    await called.wait()


def _set(loop: asyncio.AbstractEventLoop, event: asyncio.Event, _: Any) -> None:
    try:
        loop.call_soon_threadsafe(event.set)
    except RuntimeError:  # the loop was closed
        pass
