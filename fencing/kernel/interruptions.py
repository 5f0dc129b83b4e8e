"""Recognition of exceptions that interrupted a call, among the errors of the call itself.

A signal handler may raise any exception, such as a TimeoutError. A library that waits for a socket takes it for an
error of the socket, and may raise another error in its place. So the type says nothing. The traceback does: an
exception of a handler has the handler's frame. Python gives a handler the frame that it interrupted.
"""

from __future__ import annotations

import functools
import inspect
import signal
import sys
from collections.abc import Iterator
from types import CodeType, FrameType, TracebackType
from typing import Any

_WAITING = frozenset(("fencing", "redis", "socket", "ssl"))
"""The packages that wait for sockets. Others, such as asyncio, raise errors without arguments themselves."""

_slots: Any = BaseException  # a subclass may override the attributes
_context, _cause = _slots.__context__.__get__, _slots.__cause__.__get__


def interruption_in(error: BaseException) -> BaseException | None:
    """Return the exception that interrupted the calling function; None: ``error`` is an error of its own calls.

    The interruption is ``error``, or an earlier exception in whose place ``error`` was raised. An exception that came
    before the call of the calling function is no interruption.

    Two kinds are recognized: exceptions that signal handlers raised, and exceptions without arguments that another
    thread raised in this one with ``PyThreadState_SetAsyncExc`` while it waited: a socket's errors have arguments.
    """
    return _interruption_below(sys._getframe(1), error)


def raise_interruption(error: BaseException) -> None:
    """Raise the exception that interrupted the calling function, if there is one: see :func:`interruption_in`."""
    found = _interruption_below(sys._getframe(1), error)
    if found is not None:
        raise found


def _interruption_below(caller: FrameType, error: BaseException) -> BaseException | None:
    handlers = _codes_of_handlers()
    errors, seen = [error], {id(error)}
    while errors:
        found = errors.pop()
        # An exception that is raised again also has the frames of the first time.
        trace = list(_frames(found.__traceback__))
        frames = [frame for frame in trace if _is_below(frame, caller)]
        if isinstance(found, OSError) and not found.args and frames and _module(trace[-1]) in _WAITING:
            return found
        if any(_is_handler(frame, handlers) for frame in frames):
            return found
        for earlier in (_context(found), _cause(found)) if frames else ():
            if earlier is not None and id(earlier) not in seen:
                seen.add(id(earlier))
                errors.append(earlier)
    return None


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _frames(trace: TracebackType | None) -> Iterator[FrameType]:
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _is_below(frame: FrameType | None, caller: FrameType) -> bool:
    while frame is not None and frame is not caller:
        frame = frame.f_back
    return frame is not None


def _is_handler(frame: FrameType, handlers: set[CodeType]) -> bool:
    """Return whether Python called the frame's function as a handler: an argument is the frame that it interrupted."""
    interrupted, code = frame.f_back, frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)]
    for name in names:
        value = frame.f_locals.get(name)
        if interrupted is not None and (value is interrupted or _contains(value, interrupted)):
            return True
    return code in handlers  # it may have deleted its arguments


def _contains(value: object, frame: FrameType) -> bool:
    return type(value) is tuple and any(each is frame for each in value)


def _codes_of_handlers() -> set[CodeType]:
    codes = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        while isinstance(handler, functools.partial):
            handler = handler.func
        function = getattr(handler, "__func__", handler)
        code = getattr(function, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
        if isinstance(code, CodeType):
            codes.add(code)
    return codes
