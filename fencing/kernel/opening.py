"""Opening of connections on helper threads, so that a call waits for one no longer than its own time.

No time-outs of a driver bound all of it. A name must be resolved. TLS and the handshake go on as long as bytes drip in.
Functions of the user's give credentials. So a helper thread opens the connection, and the call waits for the helper.

The opening goes on when the call has given up, up to a limit of its own. If it succeeds, another call that waits gets
the connection, or else the pool. So a server is reached whose handshake takes longer than one call may. At the limit
the socket is shut down, which ends the helper. An opening that has no socket cannot be ended: it counts, until it ends
by itself.
"""

from __future__ import annotations

import contextvars
import inspect
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from fencing.kernel import process
from fencing.kernel.retry import LEAST_SECONDS
from fencing.kernel.timer import timer
from fencing.kernel.waking import LOST_WAKE_SECONDS, Wake
from fencing.kernel.workers import DaemonThread

MOST_OVERDUE = 4
"""How many openings of one server may go on at the same time when their calls have given up."""

MOST_OVERDUE_OF_ALL = 16
"""How many of all servers of a coordinator. Beyond that, each server may still have one."""

YOUNG_SHARE = 1 / 3
"""For which share of its limit one of too many is not broken off: it may be just about to succeed."""

BROKEN_OFF = "the connection was broken off as it opened"

R = TypeVar("R")
T = TypeVar("T")


class NotOpenYet(TimeoutError):
    """No connection is open yet. A class of its own: functions of the user's and signal handlers raise TimeoutError."""


class Hanging(NotOpenYet):
    """Too many attempts to connect hang already."""


class Opening(Generic[T]):
    """A connection that is being opened, by a helper thread; or the wait of a call for one of another opening.

    Attributes:
        began: when it began.
        until: when its call gives up; then it is overdue.
        ends_at: when the opening is broken off.
        is_running: whether a helper opens it.
        is_over: whether it has succeeded or failed.
        is_left: whether its call has given up, or has what it wanted.
        has_connected: whether the helper has opened a connection.
    """

    __slots__ = (
        "__weakref__",
        "_break_offs",
        "_can_break_off",
        "_is_broken_off",
        "_wake",
        "began",
        "ends_at",
        "error",
        "has_connected",
        "is_left",
        "is_over",
        "is_running",
        "opened",
        "until",
    )

    def __init__(self, seconds: float, longest: float) -> None:
        self.began = process.now()
        self.until, self.ends_at = self.began + seconds, self.began + longest
        self.opened: deque[T] = deque()  # its connection, until the call or the pool takes it
        self.error: BaseException | None = None
        self.is_running = self.is_over = self.is_left = self.has_connected = False
        self._wake = Wake()
        # Whoever takes it out decides what becomes of the connection: it is broken off, or it is open.
        self._break_offs: deque[Callable[[], object]] = deque()
        self._can_break_off = self._is_broken_off = False

    @property
    def is_abandoned(self) -> bool:
        """Whether its call has given up, and it has not connected."""
        return self.is_left and not self.has_connected

    @property
    def is_waiting(self) -> bool:
        """Whether the call still waits for its connection."""
        return not (self.is_over or self.is_left or self.opened)

    @property
    def left(self) -> float:
        """How many seconds the opening may still take; always more than 0."""
        return max(self.ends_at - process.now(), LEAST_SECONDS)

    def wait(self, seconds: float) -> None:
        """Wait until there is a connection, or it is over; at most ``seconds``."""
        if self.is_waiting:
            self._wake.wait(seconds)

    def give(self, opened: T) -> None:
        """Give it a connection, perhaps of another opening, and wake the call."""
        self.opened.append(opened)
        self._wake.set()

    def take(self) -> T:
        """Return the connection.

        Raises:
            NotOpenYet: it is not open yet.
            Exception: the failure of the opening.
        """
        try:
            return self.opened.pop()
        except IndexError:
            error, self.error = self.error, None  # its traceback refers to the frames that have this
            raise error or NotOpenYet("no connection in time") from None

    def breaks_off_by(self, break_off: Callable[[], object]) -> None:
        """Say how another thread can end the opening; it fails then."""
        self._break_offs.clear()
        self._break_offs.append(break_off)
        self._can_break_off = True
        if self._is_broken_off:
            self.break_off()

    def break_off(self) -> None:
        """End the opening, if that is possible. It may be over."""
        self._is_broken_off = True
        try:
            break_off = self._break_offs.pop()
        except IndexError:
            return
        break_off()

    def succeed(self) -> bool:
        """Return whether nothing has broken it off. From here on nothing does: others may use the connection."""
        if self._can_break_off:
            try:
                self._break_offs.pop()
            except IndexError:
                return False
            self._can_break_off = False
        return True

    def end(self, error: BaseException | None = None) -> None:
        """Note that it is over, and wake the call."""
        self.error = error
        self.is_running, self.is_over = False, True
        self._wake.set()


class Openings(dict[Opening[Any], "Opener[Any]"]):
    """The openings of a coordinator that are under way, each with its server's opener. A forked child has none."""

    def __init__(self) -> None:
        super().__init__()
        process.after_fork(self._reset)

    def _reset(self) -> None:
        self.clear()

    def hanging(self, opener: Opener[Any]) -> list[Opening[Any]]:
        """Return those of a server that are overdue if there are too many of them; otherwise none."""
        now = process.now()
        # One whose call was interrupted is left before its time is over.
        overdue = [
            (opening, its) for opening, its in list(self.items()) if opening.until <= now or opening.is_abandoned
        ]
        for opening, _ in overdue:
            if not opening.is_running:  # its call was interrupted before it could remove it
                self.pop(opening, None)
        overdue = [(opening, its) for opening, its in overdue if opening.is_running]
        own = [opening for opening, its in overdue if its is opener]
        return own if len(own) >= MOST_OVERDUE or len(overdue) >= MOST_OVERDUE_OF_ALL else []


class Opener(Generic[T]):
    """What opens the connections to one server, for threads.

    A call that cannot wait in :meth:`open` begins an opening, and asks for its connection from time to time.

    Args:
        address: of the server, for messages.
        make: opens a connection. A helper thread calls it, in the context of the call. It must end in the time that
            its argument has left, as far as it can, and should tell it how it can be broken off.
        close: closes a connection that nobody needs.
        adopt: gives a connection that came too late to a pool, and returns whether that had room; None: there is none.
        openings: those of the coordinator; None: it has no other server.
        shares: whether a call may get what was opened for another one. Not where functions of the user's prepare
            connections: what they did belongs to the context of their call.
        hangs: where its openings may hang, for messages.

    The methods of an object are referenced weakly: it may have the opener.
    """

    def __init__(
        self,
        address: str,
        make: Callable[[Opening[T]], T],
        close: Callable[[T], object],
        adopt: Callable[[T], bool] | None = None,
        openings: Openings | None = None,
        *,
        shares: bool = True,
        hangs: str = "",
    ) -> None:
        self._shares, self._hangs = shares, hangs
        self._address, self._close = address, close
        self._make, self._adopt = _weakly(make), None if adopt is None else _weakly(adopt)
        self._openings = Openings() if openings is None else openings

    def retire(self) -> None:
        """Give the pool nothing any more: another opener has taken the place of this one."""
        self._adopt = None

    def open(self, seconds: float, longest: float) -> T:
        """Return an open connection.

        Args:
            seconds: how long to wait at most.
            longest: how long the opening may take at most.

        Raises:
            NotOpenYet: it is not open yet. Another call may get it later.
            Exception: what ``make`` has raised.
        """
        opening = Opening[T](seconds, longest)
        try:
            self._openings[opening] = self  # from here on, it may be given the connection of another opening
            hanging = self._start_unless_too_many(opening)
            while opening.is_waiting and (left := opening.until - process.now()) > 0:
                opening.wait(min(left, LOST_WAKE_SECONDS) if hanging else left)
                if hanging and opening.is_waiting:
                    hanging = self._start_unless_too_many(opening)
            if hanging and not opening.opened:
                raise self._hang(hanging)
            return opening.take()
        finally:
            self.leave(opening)
            if not opening.is_running:
                self._openings.pop(opening, None)

    def begin(self, seconds: float, longest: float) -> Opening[T]:
        """Begin to open a connection. The caller takes it, or leaves it when it does not wait any longer.

        Raises:
            Hanging: too many hang already.
        """
        opening = Opening[T](seconds, longest)
        hanging = self._start_unless_too_many(opening)
        if hanging:
            raise self._hang(hanging)
        return opening

    def _start_unless_too_many(self, opening: Opening[T]) -> list[Opening[Any]]:
        """Start a helper thread; or return the openings that hang. Of those, one that is old is broken off."""
        hanging = self._openings.hanging(self)
        if hanging:
            oldest = hanging[0]
            if process.now() - oldest.began > (oldest.ends_at - oldest.began) * YOUNG_SHARE:
                oldest.break_off()
            return hanging
        context = contextvars.copy_context()
        try:
            DaemonThread(context.run, "fencing-opener", self._run, opening).start()
        except RuntimeError:  # no thread can be started; mostly because the interpreter is ending
            opening.ends_at = opening.until
            context.run(self._run, opening)
        return []

    def _hang(self, hanging: list[Opening[Any]]) -> Hanging:
        return Hanging(
            f"{len(hanging)} attempts to connect to {self._address} hang: {self._hangs}in the resolving of its name, "
            f"in the handshake of TLS, or in a function of yours, such as one that gives credentials"
        )

    def leave(self, opening: Opening[T]) -> None:
        """Give what this opening has opened, or will, to another call or the pool. Nothing happens if it was taken."""
        opening.is_left = True
        self._settle(opening)

    def _settle(self, opening: Opening[T]) -> None:
        """Find a place for each connection of an opening that was left."""
        while opening.opened:
            try:
                opened = opening.opened.pop()
            except IndexError:
                return
            if not self._give(opened) and not self._give_to_pool(opened):
                self._close(opened)

    def _give(self, opened: T) -> bool:
        if not self._shares:
            return False
        for other, opener in list(self._openings.items()):
            if opener is self and other.is_waiting and other.until > process.now():
                other.give(opened)
                if other.is_left:  # meanwhile; its call first leaves, and then looks for a connection
                    self._settle(other)
                return True
        return False

    def _give_to_pool(self, opened: T) -> bool:
        adopt = None if self._adopt is None else self._adopt()
        return adopt is not None and adopt(opened)

    def _run(self, opening: Opening[T]) -> None:
        error: BaseException | None = None
        alive = weakref.ref(opening)  # weak: what an interruption took from its call is collected, and so closed
        try:
            opening.is_running = True
            self._openings[opening] = self
            with suppress(RuntimeError):  # the timer has no thread, either
                timer().call_at(opening.ends_at, partial(_break_off, alive), partial(_is_under_way, alive))
            make = self._make()
            if make is not None:
                made = make(opening)
                if opening.succeed():
                    opening.has_connected = True
                    opening.give(made)
                else:
                    self._close(made)
                    error = NotOpenYet(BROKEN_OFF)
        except BaseException as raised:  # noqa: BLE001 - the call raises it
            error = raised
        finally:
            self._openings.pop(opening, None)
            opening.end(error)
            error = None
            if opening.is_left:  # read after the connection was added: the call first leaves, and then looks for it
                self._settle(opening)


def _is_under_way(alive: weakref.ref[Opening[Any]]) -> bool:
    opening = alive()
    return opening is not None and not opening.is_over


def _break_off(alive: weakref.ref[Opening[Any]]) -> None:
    opening = alive()
    if opening is not None:
        opening.break_off()


def _weakly(function: Callable[[T], R]) -> Callable[[], Callable[[T], R] | None]:
    """Return a reference to a function, which is weak if it is a method. It returns None if the object is gone."""
    return weakref.WeakMethod(function) if inspect.ismethod(function) else lambda: function
