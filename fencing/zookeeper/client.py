"""The coordinator's own session in ZooKeeper for threads."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from fencing.kernel import process
from fencing.kernel.retry import LEAST_SECONDS
from fencing.kernel.waking import RECHECK_SECONDS
from fencing.zookeeper.calls import Ask, Leave, Reply, Wait
from fencing.zookeeper.session import Session, Watching
from fencing.zookeeper.sessions import Sessions
from fencing.zookeeper.waiters import Watch


class Client(Sessions):
    """The session of a coordinator for threads."""

    def perform(self, effect: Ask | Wait | Leave) -> Any:
        """Make requests, or wait.

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
        return self._ask(session, effect) if isinstance(effect, Ask) else self._wait(session, effect)

    def _ask(self, session: Session, ask: Ask) -> Reply:
        sent_at = process.now()
        until = time.monotonic() + ask.timeout
        self._wait_for_connection(session, ask.timeout)
        sent_in = session.id
        results = self.send(session, ask)
        for result in results:
            result.wait(max(until - time.monotonic(), LEAST_SECONDS))
            if not result.ready():  # gevent's wait returns the value
                raise self.no_reply(session, ask.timeout)
        return self.reply_of(session, ask, results, sent_at, sent_in)

    def _wait_for_connection(self, session: Session, seconds: float) -> None:
        if not session.connected:
            session.settled.wait(max(seconds, LEAST_SECONDS))
            self.check_connected(session)

    def _wait(self, session: Session, wait: Wait) -> bool:
        until = time.monotonic() + wait.seconds
        watch: Watch = wait.waiter
        woken = session.handler.event_object()
        self.end_watch(watch)
        self._wait_for_connection(session, wait.seconds)
        watch.request = Watching(wait.path, partial(_set, woken))
        self.waits.add(watch.request.watcher)
        if self.closed:  # read after the line above: the closing wakes all that are in there
            woken.set()
        try:
            result = session.send(watch.request)
            result.wait(max(until - time.monotonic(), LEAST_SECONDS))
            if not result.ready():
                return False
            if self.is_gone(result):
                return True
            while not watch.is_notified and not woken.wait(
                min(max(until - time.monotonic(), LEAST_SECONDS), RECHECK_SECONDS)
            ):
                if time.monotonic() >= until:
                    return False
            return True
        finally:
            self.end_watch(watch)

    def close(self) -> None:
        """End the session."""
        self.end()


def _set(event: Any, _: Any) -> None:
    event.set()
