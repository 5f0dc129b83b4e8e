"""The decorator ``locked``: it holds a lock for each call of a function, and names the lock by the call's arguments."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from string import Formatter
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, cast, get_args, overload

from fencing.kernel.errors import NotAcquired
from fencing.kernel.fence import check_resource

if TYPE_CHECKING:  # each side loads its own
    from fencing.locks.lease import Lease
    from fencing.locks.lease_async import AsyncLease

P = ParamSpec("P")
R = TypeVar("R")
Owner = TypeVar("Owner")
Skipped = TypeVar("Skipped", covariant=True)

Busy = Literal["raise", "skip"]
"""What a call does that does not get its lock: raise NotAcquired, or return None without the function."""

OnBusy = Callable[[NotAcquired], Skipped]
"""Likewise: a function that is called with the NotAcquired, and whose result is the call's."""

BUSY_REASONS = ("held", "full")
"""The reasons of a NotAcquired for which a call is skipped: somebody else has the lock, or others wait for it. Any
other reason says that something is wrong, and that perhaps nobody does the work."""


class Decorator(Protocol[Skipped]):
    """The decorator that :meth:`fencing.Coordinator.locked` returns. ``Skipped``: what calls return if skipped."""

    @overload
    def __call__(self, function: Callable[Concatenate[Lease, P], R]) -> Callable[P, R | Skipped]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Owner, Lease, P], R]
    ) -> Callable[Concatenate[Owner, P], R | Skipped]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Callable[P, R | Skipped]: ...


class AsyncDecorator(Protocol[Skipped]):
    """The decorator that :meth:`fencing.AsyncCoordinator.locked` returns. ``Skipped``: what calls return that are
    skipped."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[AsyncLease, P], Awaitable[R]]
    ) -> Callable[P, Coroutine[Any, Any, R | Skipped]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Owner, AsyncLease, P], Awaitable[R]]
    ) -> Callable[Concatenate[Owner, P], Coroutine[Any, Any, R | Skipped]]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R | Skipped]]: ...


MOST_NAMES = 1024
"""How many locks a decorated function keeps, so that a call need not make one."""

LEASE = "lease"
"""The parameter that gets the lease."""

_NAMED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class _Decorated:
    """What the decorator knows of a function: where the lease goes, and which arguments name the resource."""

    def __init__(self, function: Callable[..., Any], template: str) -> None:
        self._template = template
        parameters = dict(inspect.signature(function).parameters)
        lease = parameters.pop(LEASE, None)
        self._takes_lease = lease is not None
        self._lease_index: int | None = None  # None: it is passed by name
        if lease is not None:
            if lease.kind not in _NAMED:
                raise TypeError(f"{_name(function)} cannot be given a lease by *{LEASE}; make it a plain parameter")
            if lease.kind is not inspect.Parameter.KEYWORD_ONLY:
                self._lease_index = list(inspect.signature(function).parameters).index(LEASE)
        self.signature = inspect.signature(function).replace(parameters=list(parameters.values()))
        self._fields = _fields_of(template, function, parameters)

    def resource(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the resource of a call."""
        values: dict[str, Any] = {}
        for name, index, default in self._fields:
            if index is not None and index < len(args):
                values[name] = args[index]
            elif name in kwargs:
                values[name] = kwargs[name]
            elif default is not inspect.Parameter.empty:
                values[name] = default
            else:
                self.signature.bind(*args, **kwargs)  # raises the usual TypeError: the argument is missing
        return self._template.format(**values)

    def with_lease(
        self, lease: object, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with the lease among them, if the function takes it."""
        if not self._takes_lease:
            return args, kwargs
        if LEASE in kwargs:
            raise TypeError(f"the decorator passes the {LEASE}; call the function without it")
        index = self._lease_index
        if index is not None and index <= len(args):
            return (*args[:index], lease, *args[index:]), kwargs
        return args, {**kwargs, LEASE: lease}


def check_template(template: object) -> None:
    """Raise TypeError unless the template is a text; so that ``@locked`` without parentheses is noticed."""
    if not isinstance(template, str):
        kind = "a function; write @coordinator.locked(resource)" if callable(template) else type(template).__name__
        raise TypeError(f'locked takes a resource such as "orders:{{order_id}}", not {kind}')


def check_busy(busy: object, timeout: float | None) -> float | None:
    """Return how long a call waits for its lock. Raise ValueError or TypeError if ``busy`` is wrong.

    Args:
        timeout: that of the decorator. None is no wait at all for calls that may be skipped.
    """
    if inspect.iscoroutinefunction(busy):
        raise TypeError(f"busy must be a plain function, not the async {_name(busy)}; it decides, and does not wait")
    if not callable(busy) and busy not in get_args(Busy):
        raise ValueError(
            f'busy must be "raise" (NotAcquired), "skip" (the call returns None), or a function of the NotAcquired, '
            f"not {busy!r:.100}; it is about a lock that another holder has"
        )
    return 0 if timeout is None and busy != "raise" else timeout


def _fields_of(
    template: str, function: Callable[..., Any], parameters: dict[str, inspect.Parameter]
) -> list[tuple[str, int | None, Any]]:
    """Return the template's parameters: name, position (None: by name only), default."""
    fields: dict[str, tuple[str, int | None, Any]] = {}
    names = list(parameters)
    for _, field, _, _ in Formatter().parse(template):
        if field is None:
            continue
        name = field.partition(".")[0].partition("[")[0]
        parameter = parameters.get(name)
        if parameter is None or parameter.kind not in _NAMED:
            raise TypeError(
                f"{template!r} names {{{name}}}, which is no parameter of {_name(function)}; its parameters are "
                f"{', '.join(names) or 'none'}"
            )
        index = None if parameter.kind is inspect.Parameter.KEYWORD_ONLY else names.index(name)
        fields[name] = (name, index, parameter.default)
    if not fields:
        check_resource(template.format())
    return list(fields.values())


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))


def check_function(function: object, decorator: str, *, asynchronous: bool) -> None:
    """Raise TypeError unless a lock can be held for each call of the function."""
    if isinstance(function, (classmethod, staticmethod)):
        kind = type(function).__name__
        raise TypeError(f"write @{kind} above @{decorator}(...): the decorator takes the function itself, not a {kind}")
    if isinstance(function, type) or not callable(function):
        raise TypeError(
            f"{decorator} decorates a function, not {function!r:.100}; call {decorator}(...) with the resource first"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{_name(function)} is a generator; use hold() inside it, so that the lock is held while it runs"
        )
    if inspect.iscoroutinefunction(function) is not asynchronous:
        kind, coordinator = ("sync", "a sync") if asynchronous else ("async", "an async")
        raise TypeError(f"{_name(function)} is {kind}: decorate it with {coordinator} coordinator's {decorator}()")


def not_a_coroutine(result: R, function: Callable[..., Any]) -> R:
    """Return the result of a sync function. Raise TypeError for a coroutine, which would run without the lock."""
    if isinstance(result, CoroutineType):
        result.close()
        raise TypeError(
            f"{_name(function)} returned a coroutine, which would run without the lock; "
            f"decorate the async function itself, with an async coordinator"
        )
    return noting_stream(result, function)


def noting_stream(result: R, function: Callable[..., Any]) -> R:
    """Return the result of a call. Warn if it is a stream, which is read when the lock has been freed."""
    if _is_stream(result):
        warnings.warn(
            f"{_name(function)} returned a {type(result).__name__}, which is read after the lock has been freed: "
            f"return a complete result, or hold the lock around the one that reads it",
            RuntimeWarning,
            stacklevel=3,
        )
    return result


_STREAMS = ("StreamingResponse", "StreamingHttpResponse")
"""The classes of Starlette, FastAPI and Django."""

MOST_KINDS = 256
"""How many classes of results are remembered, so that a call need not look at its result again."""


def _is_stream(result: object) -> bool:
    """Return whether this is a generator, or a response that a framework reads piece by piece."""
    kind = _kind_of(cast(Hashable, type(result)))
    return kind == "stream" or (kind == "response" and getattr(result, "is_streamed", False) is True)


@functools.lru_cache(MOST_KINDS)
def _kind_of(kind: type) -> Literal["stream", "response", "other"]:
    """Return what the results of a class are. Only the class is asked: an attribute may be a call of the user's."""
    if kind in (GeneratorType, AsyncGeneratorType) or any(each.__name__ in _STREAMS for each in kind.__mro__):
        return "stream"
    return "response" if isinstance(getattr(kind, "is_streamed", None), property) else "other"  # Flask


def locked(
    hold: Callable[[str], AbstractContextManager[Any]],
    template: str,
    busy: Busy | OnBusy[Any],
    function: Callable[..., Any],
) -> Any:
    """Return ``function`` under the lock that ``hold`` returns for the resource of each call."""
    check_function(function, "locked", asynchronous=False)
    decorated = _Decorated(function, template)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        holding = hold(decorated.resource(args, kwargs))
        acquired = False
        try:
            with holding as lease:
                acquired = True
                args, kwargs = decorated.with_lease(lease, args, kwargs)
                return not_a_coroutine(function(*args, **kwargs), function)
        except NotAcquired as error:
            if acquired or not _may_skip(busy, error):
                raise
            return _skip(busy, error)

    call.__signature__ = decorated.signature  # type: ignore[attr-defined]
    return call


def locked_async(
    hold: Callable[[str], AbstractAsyncContextManager[Any]],
    template: str,
    busy: Busy | OnBusy[Any],
    function: Callable[..., Any],
) -> Any:
    """Return the coroutine function under the lock that ``hold`` returns for the resource of each call."""
    check_function(function, "locked", asynchronous=True)
    decorated = _Decorated(function, template)

    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        holding = hold(decorated.resource(args, kwargs))
        acquired = False
        try:
            async with holding as lease:
                acquired = True
                args, kwargs = decorated.with_lease(lease, args, kwargs)
                return noting_stream(await function(*args, **kwargs), function)
        except NotAcquired as error:
            if acquired or not _may_skip(busy, error):
                raise
            return _skip(busy, error)

    call.__signature__ = decorated.signature  # type: ignore[attr-defined]
    return call


def _may_skip(busy: Busy | OnBusy[Any], error: NotAcquired) -> bool:
    return busy != "raise" and error.reason in BUSY_REASONS


def _skip(busy: Busy | OnBusy[Any], error: NotAcquired) -> Any:
    """Return what the call returns that does not run its function."""
    return busy(error) if callable(busy) else None
