"""The blocks that guards return: how they are entered, and what becomes of a second one inside.

They are entered with ``with`` or ``async with``; whatever else is done says so.

Nested transactions of one fence are refused, where one thread or task asks for them. A guarded block that asks its
guard for a second transaction of the same fence would wait for itself. The second waits for the first, and the first
for the second, until one of them runs out of time. Not noticed are the block of another guard object, and the block of
another fence of the same name.

A fork copies an open transaction. Were the child to end its block, its COMMIT or ROLLBACK would end the parent's.
"""

from __future__ import annotations

import functools
import inspect
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn, ParamSpec, Protocol, TypeVar

from fencing.kernel import quirks
from fencing.kernel.fence import Fence
from fencing.kernel.process import after_fork, current_owner
from storage_guards.once import refuse_once

P = ParamSpec("P")
T = TypeVar("T")


class _Block:
    """What blocks of both kinds say when they are misused. They are context managers of contextlib: no step between
    ``with`` and the guard's own is added, where an interruption could leave a block that has begun."""

    statement: ClassVar[str]
    gen: Any

    @property
    def _name(self) -> str:
        return str(self.gen.__name__)

    @property
    def _advice(self) -> str:
        owner = "guard." if "." in self.gen.__qualname__ else ""
        return f"write `{self.statement} {owner}{self._name}(…) as …:`"

    def _require_new(self) -> None:
        if quirks.NEVER_ENTERED not in vars(self):
            raise TypeError(f"this {self._name}() was used before; call {self._name}() once for each block")

    def _refuse(self, other: str) -> NoReturn:
        vars(self).pop(quirks.NEVER_ENTERED, None)
        raise TypeError(f"{self._name}() returns a block for `{self.statement}`, not for `{other}`; {self._advice}")

    def __getattr__(self, name: str) -> NoReturn:
        if name == "gen":  # the constructor failed
            raise AttributeError(name)
        raise AttributeError(
            f"{self._name}() returns a block, which has no {name!r}; "
            f"write `{self.statement} … as …:`, and use what that gives"
        )

    def __call__(self, function: object) -> NoReturn:
        self._refuse("@")

    def __repr__(self) -> str:
        return f"<block of {self._name}()>"

    def __del__(self) -> None:
        if quirks.NEVER_ENTERED in vars(self):
            warnings.warn(
                f"{self._name}() was never entered, so it had no effect; {self._advice}",
                RuntimeWarning,
                stacklevel=2,
            )


class Block(_Block, quirks.GeneratorContextManager[T]):
    """A block of a sync guard, entered with ``with``, once."""

    statement = "with"

    def __enter__(self) -> T:
        self._require_new()
        return super().__enter__()

    if not TYPE_CHECKING:  # type checkers report these themselves

        def __aenter__(self) -> NoReturn:
            self._refuse("async with")

        def __aexit__(self, *error: object) -> None: ...


class AsyncBlock(_Block, quirks.AsyncGeneratorContextManager[T]):
    """A block of an async guard, entered with ``async with``, once."""

    statement = "async with"

    def __aenter__(self) -> Coroutine[Any, Any, T]:
        self._require_new()
        return super().__aenter__()

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            self._refuse("with")

        def __exit__(self, *error: object) -> None: ...


def block(function: Callable[P, Iterator[T]]) -> Callable[P, Block[T]]:
    """Make a method that returns a block of a generator function, as ``contextlib.contextmanager`` does."""
    takes_once = _takes_once(function)

    @functools.wraps(function)
    def make(*args: P.args, **kwargs: P.kwargs) -> Block[T]:
        generator: Any = function
        if kwargs and not takes_once:
            _refuse_once(kwargs)
        return Block(generator, args, kwargs)

    return make


def async_block(function: Callable[P, AsyncIterator[T]]) -> Callable[P, AsyncBlock[T]]:
    """Make a method that returns a block, as ``contextlib.asynccontextmanager`` does."""
    takes_once = _takes_once(function)

    @functools.wraps(function)
    def make(*args: P.args, **kwargs: P.kwargs) -> AsyncBlock[T]:
        generator: Any = function
        if kwargs and not takes_once:
            _refuse_once(kwargs)
        return AsyncBlock(generator, args, kwargs)

    return make


def _takes_once(function: Callable[..., Any]) -> bool:
    return "once" in inspect.signature(function).parameters


def _refuse_once(options: Mapping[str, object]) -> None:
    if "once" in options:
        refuse_once(options["once"] or "", "a block")


class Holder(Protocol):
    """A transaction that holds marks."""

    is_left: bool
    """Its context was left, so it certainly is over."""

    def is_over(self) -> bool:
        """Return whether it no longer holds the marks. Hooks may run before its context is left."""

    def leave_to_parent(self) -> None:
        """End this child process's copy, without a message to the storage."""


class OpenTransaction(NamedTuple):
    """A transaction that holds marks, or is about to."""

    owner: object
    marks: int
    fences: Sequence[Fence]
    holder: weakref.ref[Holder]  # a transaction that is interrupted as it begins ends with its object


# The open transactions of this context. Child contexts inherit them, so each has its owner.
_open: ContextVar[tuple[OpenTransaction, ...]] = ContextVar("fencing_open_transactions", default=())

_all: set[weakref.ref[Holder]] = set()  # those of all threads and tasks, and some that are over


def note_open(
    marks: object, fences: Sequence[Fence], holder: Holder, open_now: Sequence[OpenTransaction] | None = None
) -> None:
    """Note a transaction of this thread or task, until its end.

    Args:
        marks: the object that stands for the guard's marks, one for each guard.
        fences: the fences whose marks the transaction holds, or is about to hold.
        holder: the transaction.
        open_now: what :func:`refuse_nested` has just returned.
    """
    if open_now is None:
        open_now = _still_open()
    alive = weakref.ref(holder, _all.discard)
    _all.add(alive)
    _open.set((*open_now, OpenTransaction(current_owner(), id(marks), fences, alive)))


def refuse_nested(marks: object, fences: Sequence[Fence]) -> Sequence[OpenTransaction]:
    """Refuse a call inside a guarded block of the same thread or task and the same fence.

    Args:
        marks: as for :func:`note_open`.
        fences: the fences whose marks the call needs.

    Returns:
        The open transactions of this context.

    Raises:
        RuntimeError: it would wait for a block of the same thread or task. Use what that block gives, or end it first.
    """
    still_open = _still_open()
    owner = current_owner() if still_open else None
    for each in still_open:
        same = [fence for fence in fences if fence in each.fences]
        if same and each.owner == owner and each.marks == id(marks):
            raise RuntimeError(
                f"a guarded block around this call holds the mark of {same[0].resource!r}, so this call would wait for "
                f"itself; use the connection or session of that block, or its data; or end the block first"
            )
    return still_open


def _still_open() -> list[OpenTransaction]:
    found: list[OpenTransaction] = []
    for each in _open.get():
        holder = each.holder()
        if not (holder is None or holder.is_left or holder.is_over()):
            found.append(each)
    return found


def _in_child() -> None:
    for each in list(_all):
        holder = each()
        if not (holder is None or holder.is_left or holder.is_over()):
            holder.leave_to_parent()


after_fork(_in_child)
