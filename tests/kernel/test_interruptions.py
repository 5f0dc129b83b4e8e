"""Exceptions that interrupt a call are told apart from errors of the call."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from fencing.kernel.interruptions import interruption_in
from tests.support import wait_until

Pair = tuple[socket.socket, socket.socket]


def raising(number: int, frame: FrameType | None) -> None:
    raise TimeoutError("the time is up")


def nested(number: int, frame: FrameType | None) -> None:
    raising(0, None)


def forgetful(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise TimeoutError("the time is up")


class Handler:
    def __call__(self, *args: object) -> None:
        del args
        raise TimeoutError("the time is up")

    def method(self, number: int, frame: FrameType | None) -> None:
        raising(number, frame)


HANDLERS: dict[str, Callable[..., None]] = {
    "function": raising,
    "nested": nested,
    "forgetful": forgetful,
    "lambda": lambda *_: raising(0, None),
    "partial": functools.partial(forgetful),
    "object": Handler(),
    "method": Handler().method,
}


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def converting(wait: Callable[[], object]) -> None:
    try:
        wait()
    except TimeoutError:
        raise ConnectionError("the library's own error") from None


def error_of(call: Callable[..., object], *args: object) -> tuple[BaseException, BaseException | None]:
    try:
        call(*args)
    except OSError as error:
        return error, interruption_in(error)
    raise AssertionError


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS)
def test_an_exception_of_a_handler(handler: Any, pair: Pair) -> None:
    ours, _theirs = pair
    ours.settimeout(5)
    before = signal.signal(signal.SIGALRM, handler)

    def wait() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        ours.recv(1)

    try:
        error, interruption = error_of(wait)
        assert interruption is error
        error, interruption = error_of(converting, wait)
        assert isinstance(error, ConnectionError)
        assert isinstance(interruption, TimeoutError)
        ours.settimeout(0.001)
        try:
            raise interruption
        except TimeoutError:
            assert error_of(ours.recv, 1)[1] is None, "it came before the call"
    finally:
        signal.signal(signal.SIGALRM, before)


def test_an_exception_that_another_thread_raises_here(pair: Pair) -> None:
    ours, theirs = pair
    ours.settimeout(5)
    stream = ours.makefile("rb", buffering=0)
    this = threading.get_ident()

    def interrupt() -> None:
        wait_until(lambda: sys._current_frames()[this].f_code.co_name == "readinto")
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(this), ctypes.py_object(TimeoutError))
        theirs.send(b"1")

    thread = threading.Thread(target=interrupt)
    thread.start()
    with stream, pytest.raises(TimeoutError) as caught:  # noqa: PT012 - it comes in the block
        while True:
            error, interruption = error_of(stream.read, 1)
            if interruption is error:
                raise error
    assert not caught.value.args
    thread.join()


def test_errors_of_the_socket_are_no_interruptions(pair: Pair) -> None:
    ours, theirs = pair
    ours.settimeout(0.001)
    assert error_of(ours.recv, 1)[1] is None
    theirs.close()
    assert error_of(ours.send, b"1")[1] is None
    assert error_of(socket.create_connection, ("127.0.0.1", 1))[1] is None
    assert error_of(socket.getaddrinfo, "no such host", 1)[1] is None


def test_an_error_that_a_statement_raises_is_no_interruption() -> None:
    def timed_out() -> None:
        raise TimeoutError  # without arguments, as anyio and concurrent.futures do

    assert error_of(timed_out)[1] is None


def test_the_frames_of_a_generator_that_has_ended() -> None:
    """They lead to no caller: psycopg performs plans of ours."""

    def plan() -> Iterator[None]:
        signal.raise_signal(signal.SIGALRM)
        yield

    def perform() -> None:
        try:
            next(plan())
        except TimeoutError:
            raise ConnectionError("the library's own error") from None

    before = signal.signal(signal.SIGALRM, raising)
    try:
        error, interruption = error_of(perform)
        assert isinstance(error, ConnectionError)
        assert isinstance(interruption, TimeoutError)
    finally:
        signal.signal(signal.SIGALRM, before)


async def _outcome_of_a_future() -> BaseException | None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_exception(TimeoutError())  # as asyncpg does
    try:
        await future
    except TimeoutError as error:
        return interruption_in(error)
    raise AssertionError


def test_the_outcome_of_a_future_is_no_interruption() -> None:
    assert asyncio.run(_outcome_of_a_future()) is None


async def _wait_in_vain() -> BaseException | None:
    try:
        async with asyncio.timeout(0.001):
            await asyncio.sleep(5)
    except TimeoutError as error:
        return interruption_in(error)
    raise AssertionError


def test_time_outs_of_asyncio_are_no_interruptions() -> None:
    assert asyncio.run(_wait_in_vain()) is None
