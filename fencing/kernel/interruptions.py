"""Recognition of exceptions that interrupted a call, among the errors of the call itself.

A signal handler may raise any exception, such as a TimeoutError. A library that waits for a socket takes it for an
error of the socket, and may raise another error in its place. So the type says nothing. The traceback does: an
exception of a handler has the handler's frame. Python gives a handler the frame that it interrupted.
"""

from __future__ import annotations

import dis
import functools
import inspect
import signal
from collections.abc import Iterator
from types import CodeType, FrameType, TracebackType
from typing import Any

_RAISE = dis.opmap["RAISE_VARARGS"]
"""The instruction of a ``raise`` statement: https://docs.python.org/3/library/dis.html#opcode-RAISE_VARARGS"""

_slots: Any = BaseException  # a subclass may override the attributes
_context, _cause = _slots.__context__.__get__, _slots.__cause__.__get__


def interruption_in(error: BaseException) -> BaseException | None:
    """Return the exception that interrupted a call; None: ``error``, which was just caught, is the call's own.

    The interruption is ``error``, or an earlier exception in whose place ``error`` was raised. An exception that came
    before the call of the function that caught ``error`` is no interruption.

    Two kinds are recognized: exceptions that signal handlers raised, and an OSError without arguments, such as
    TimeoutError, that another thread raised in this one with ``PyThreadState_SetAsyncExc``. No ``raise`` statement has
    raised that, and an error of the operating system has arguments. Coroutines are left out: there, the error may be
    one that was set as the outcome of a future.
    """
    if error.__traceback__ is None:
        return None
    caller, handlers = error.__traceback__.tb_frame, _codes_of_handlers()
    errors, seen = [error], {id(error)}
    while errors:
        found = errors.pop()
        trace = list(_steps(found.__traceback__))
        frames = _below(caller, trace)
        if isinstance(found, OSError) and not found.args and frames and _is_thrown(trace):
            return found
        if any(_is_handler(frame, handlers) for frame in frames):
            return found
        for earlier in (_context(found), _cause(found)) if frames else ():
            if earlier is not None and id(earlier) not in seen:
                seen.add(id(earlier))
                errors.append(earlier)
    return None


def raise_interruption(error: BaseException) -> None:
    """Raise the exception that interrupted a call, if there is one: see :func:`interruption_in`."""
    found = interruption_in(error)
    if found is not None:
        raise found


def _is_thrown(trace: list[TracebackType]) -> bool:
    """Return whether an exception without arguments came from outside, and not from a statement of the program."""
    if any(step.tb_frame.f_code.co_flags & inspect.CO_COROUTINE for step in trace):
        return False
    code, place = trace[-1].tb_frame.f_code.co_code, trace[-1].tb_lasti
    return 0 <= place < len(code) and code[place] != _RAISE


def _steps(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _below(caller: FrameType, trace: list[TracebackType]) -> set[FrameType]:
    """Return the frames of the calls that ``caller`` made. An exception that is raised again also has earlier ones."""
    found: set[FrameType] = set()
    is_last_found = False
    for step in trace:
        frame: FrameType | None = step.tb_frame
        has_ended = step.tb_frame.f_code.co_flags & inspect.CO_GENERATOR and step.tb_frame.f_back is None
        while frame is not None and frame is not caller and frame not in found:
            frame = frame.f_back
        # The frame of a generator that has ended no longer leads to the one that it ran for, which is the one before.
        is_last_found = frame is not None or bool(has_ended and is_last_found)
        if is_last_found:
            found.add(step.tb_frame)
    return found


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
