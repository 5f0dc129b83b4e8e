"""The opening of connections on helper threads: bounded for the call, and nothing is left open or lost."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fencing.kernel import opening as opening_module
from fencing.kernel.opening import MOST_OVERDUE, MOST_OVERDUE_OF_ALL, Opener, Opening, Openings
from fencing.kernel.workers import DaemonThread
from tests.support import wait_until
from tests.support.every_step import at_every_step
from tests.support.forks import in_child

LONG = 60.0
"""Seconds: what is waited for comes at once."""

SHORT = 0.05


class Connection:
    def __init__(self) -> None:
        self.is_open = True

    def close(self) -> None:
        self.is_open = False


class Server:
    """What is connected to. While it hangs, openings wait; those that can be broken off end then."""

    def __init__(self, openings: Openings | None = None) -> None:
        self.hanging = threading.Event()
        self.answers = threading.Event()
        self.can_break_off = True
        self.has_room = True
        self.error: Exception | None = None
        self.opened: list[Connection] = []
        self.adopted: list[Connection] = []
        self.threads: list[threading.Thread] = []
        self.broken_off = 0
        self.only: threading.Thread | None = None
        self.opener = Opener("localhost:1", self._make, Connection.close, self._adopt, openings)

    def _make(self, opening: Opening[Connection]) -> Connection:
        self.threads.append(threading.current_thread())
        ended = threading.Event()
        if self.can_break_off:
            opening.breaks_off_by(ended.set)
        while self.hanging.is_set() and not ended.is_set() and self.only is not threading.current_thread():
            self.answers.wait(0.01)
        if ended.is_set():
            self.broken_off += 1
            raise ConnectionError("broken off")
        if self.error is not None:
            raise self.error
        self.opened.append(Connection())
        return self.opened[-1]

    def _adopt(self, connection: Connection) -> bool:
        if self.has_room:
            self.adopted.append(connection)
        return self.has_room

    def hang(self, times: int = 1) -> None:
        self.hanging.set()
        begun = len(self.threads)
        for _ in range(times):
            with pytest.raises(TimeoutError):
                self.opener.open(SHORT, LONG)
        wait_until(lambda: len(self.threads) == begun + times)

    def go_on(self) -> None:
        self.hanging.clear()
        wait_until(lambda: not any(thread.is_alive() for thread in self.threads))


@pytest.fixture
def make() -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def server(*args: Any) -> Server:
        made.append(Server(*args))
        return made[-1]

    yield server
    for each in made:
        each.go_on()


@pytest.fixture
def server(make: Callable[[], Server]) -> Server:
    return make()


def test_a_helper_opens_it_in_the_context_of_the_call(server: Server) -> None:
    tenant = contextvars.ContextVar("tenant", default="nobody")
    seen: list[str] = []

    def make(opening: Opening[Connection]) -> Connection:
        seen.append(tenant.get())
        return server._make(opening)

    tenant.set("a")
    opener = Opener("localhost:1", make, Connection.close)
    assert opener.open(LONG, LONG) is server.opened[0]
    assert seen == ["a"]
    assert server.threads[0] is not threading.current_thread()
    server.go_on()
    assert server.opened[0].is_open


def test_its_failure_is_the_calls(server: Server) -> None:
    server.error = ValueError("refused")
    with pytest.raises(ValueError, match="refused"):
        server.opener.open(LONG, LONG)


def test_a_call_waits_no_longer_than_its_time_and_the_pool_gets_what_comes_later(server: Server) -> None:
    server.hang()
    assert not server.opened
    server.go_on()
    assert server.adopted == server.opened
    assert server.opened[0].is_open


def test_a_call_that_waits_gets_what_comes_too_late_for_another(server: Server) -> None:
    server.hang()
    got: list[Connection] = []
    second = threading.Thread(target=lambda: got.append(server.opener.open(LONG, LONG)))
    second.start()
    wait_until(lambda: len(server.threads) == 2)
    first, own = server.threads
    server.only = first  # this one goes on, the other hangs
    second.join(LONG)
    assert got == server.opened
    assert own.is_alive()
    server.go_on()
    assert server.adopted == server.opened[1:]
    assert len(server.adopted) == 1


@pytest.mark.parametrize("why", ["no room", "retired", "no pool"])
def test_what_comes_too_late_and_has_no_place_is_closed(server: Server, why: str) -> None:
    server.has_room = why != "no room"
    if why == "no pool":
        server.opener = Opener("localhost:1", server._make, Connection.close)
    server.hang()
    if why == "retired":
        server.opener.retire()
    server.go_on()
    assert [each.is_open for each in server.opened] == [False]


def test_an_opener_keeps_no_object_alive_and_closes_for_one_that_is_gone(make: Callable[[], Server]) -> None:
    server = make()
    server.hang()
    opener, opened, threads, hanging = server.opener, server.opened, server.threads, server.hanging

    class Owner:
        def adopt(self, connection: Connection) -> bool:
            raise AssertionError("it is gone")

    opener._adopt = opening_module._weakly(Owner().adopt)
    hanging.clear()
    wait_until(lambda: not any(thread.is_alive() for thread in threads))
    assert [each.is_open for each in opened] == [False]


def test_an_opening_is_broken_off_at_its_own_limit(server: Server) -> None:
    server.hanging.set()
    with pytest.raises(TimeoutError):
        server.opener.open(SHORT, 2 * SHORT)
    wait_until(lambda: server.broken_off == 1)
    with pytest.raises(ConnectionError):
        server.opener.open(LONG, SHORT)


def test_a_connection_is_either_broken_off_or_used() -> None:
    """The timer had found that the opening goes on; then it had ended, and another call had the connection."""
    shut: list[str] = []
    used: Opening[Connection] = Opening(SHORT, LONG)
    used.breaks_off_by(lambda: shut.append("used"))
    assert used.succeed()
    used.break_off()
    assert used.succeed()
    assert not shut
    broken: Opening[Connection] = Opening(SHORT, LONG)
    broken.breaks_off_by(lambda: shut.append("broken"))
    broken.break_off()
    assert not broken.succeed()
    assert shut == ["broken"]


def test_a_connection_that_was_broken_off_as_it_opened_is_closed(server: Server) -> None:
    made = server.opener._make()
    assert made is not None

    def make(opening: Opening[Connection]) -> Connection:
        connection: Connection = made(opening)
        opening.break_off()
        return connection

    opener = Opener("localhost:1", make, Connection.close)
    with pytest.raises(TimeoutError, match="broken off"):
        opener.open(LONG, LONG)
    assert [each.is_open for each in server.opened] == [False]


@pytest.mark.thorough
def test_the_oldest_of_too_many_is_broken_off(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening_module, "YOUNG_SHARE", 0.0)
    server.hang(MOST_OVERDUE)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            server.opener.open(10 * SHORT, LONG)
    assert len(server.threads) == MOST_OVERDUE + 2
    assert server.broken_off == 2


@pytest.mark.thorough
def test_a_call_waits_for_young_ones_of_too_many_and_gets_their_connection(server: Server) -> None:
    """The handshake takes longer than each call, and many call. It succeeds all the same."""
    server.hang(MOST_OVERDUE)
    got: list[Connection] = []
    calls = [threading.Thread(target=lambda: got.append(server.opener.open(LONG, LONG))) for _ in range(2)]
    used = time.process_time()
    for call in calls:
        call.start()
    for call in calls:
        call.join(6 * SHORT)
    assert time.process_time() - used < 4 * SHORT, "nobody waits in a busy loop"
    assert server.broken_off == 0
    assert len(server.threads) == MOST_OVERDUE
    server.go_on()
    for call in calls:
        call.join(LONG)
    assert len(got) == 2
    assert {id(each) for each in got} <= {id(each) for each in server.opened}
    assert not server.opener._openings


def test_of_those_that_cannot_be_broken_off_there_are_a_few_at_most(make: Callable[..., Server]) -> None:
    openings = Openings()
    server, other = make(openings), make(openings)
    server.can_break_off = False
    server.hang(MOST_OVERDUE)
    with pytest.raises(TimeoutError, match=f"{MOST_OVERDUE} attempts to connect to localhost:1 hang: in the resolving"):
        server.opener.open(SHORT, LONG)
    assert len(server.threads) == MOST_OVERDUE
    assert other.opener.open(LONG, LONG).is_open, "another server's openings go on"

    waiting = threading.Timer(SHORT, server.hanging.clear)
    waiting.start()
    assert server.opener.open(LONG, LONG).is_open, "it waits until one has ended"
    waiting.join()


def test_a_call_that_an_interruption_took_gets_nothing_and_counts_for_nothing(server: Server) -> None:
    gone = [Opening[Connection](-SHORT, LONG) for _ in range(MOST_OVERDUE)]
    server.opener._openings.update(dict.fromkeys(gone, server.opener))  # as if it came before they were removed
    server.hang()
    server.go_on()
    assert server.adopted == server.opened
    assert len(server.opened) == 1
    assert not server.opener._openings


@pytest.mark.thorough
def test_all_servers_of_a_coordinator_share_a_limit_but_each_may_have_one(make: Callable[..., Server]) -> None:
    openings = Openings()
    servers = [make(openings) for _ in range(MOST_OVERDUE_OF_ALL // MOST_OVERDUE + 1)]
    for server in servers:
        server.can_break_off = False
    for server in servers[:-1]:
        server.hang(MOST_OVERDUE)
    last = servers[-1]
    last.hang()
    with pytest.raises(TimeoutError):
        last.opener.open(SHORT, LONG)
    assert len(last.threads) == 1
    assert len(openings) == MOST_OVERDUE_OF_ALL + 1


def test_without_another_thread_the_call_opens_it_itself(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(self: DaemonThread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(DaemonThread, "start", no_thread)
    left: list[float] = []

    def make(opening: Opening[Connection]) -> Connection:
        left.append(opening.left)
        return server._make(opening)

    assert Opener("localhost:1", make, Connection.close).open(SHORT, LONG).is_open
    assert server.threads == [threading.current_thread()]
    assert left[0] <= SHORT, "it has no more time than the call"
    server.threads.clear()


def test_a_forked_child_has_no_openings(server: Server) -> None:
    server.can_break_off = False
    server.hang(MOST_OVERDUE)

    def check() -> None:
        server.hanging.clear()
        assert server.opener.open(LONG, LONG).is_open

    in_child(check)


def test_no_interruption_leaves_a_connection_open(server: Server) -> None:
    open_ones: set[int] = set()

    class Collected(Connection):
        def __init__(self) -> None:
            super().__init__()
            open_ones.add(id(self))

        def close(self) -> None:
            open_ones.discard(id(self))

        __del__ = close

    def make(opening: Opening[Connection]) -> Connection:
        server.threads.append(threading.current_thread())
        return Collected()

    opener = Opener("localhost:1", make, Connection.close)

    def work() -> None:
        opener.open(LONG, LONG)

    def check() -> None:
        wait_until(lambda: not any(thread.is_alive() for thread in server.threads))
        server.threads.clear()
        assert not open_ones
        assert not opener._openings

    steps = at_every_step(work, check)
    assert steps > 10
