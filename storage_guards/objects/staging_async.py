"""Publications in the making: objects are added one after the other, or written by a writer."""

from __future__ import annotations

# SYNC: import io
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, Self

# SYNC: from storage_guards.objects.staged_files import filesystem
from fencing.kernel.effects import Plan
from storage_guards.objects.bodies import restored
from storage_guards.objects.pointer import Published
from storage_guards.objects.progress import Progress, reported
from storage_guards.objects.publication_async import AsyncPublication
from storage_guards.objects.publishing import Publishing, Written
from storage_guards.objects.upload import NO_TEXTS, Upload
from storage_guards.sending import Sending


# SYNC instead: class Writer(io.RawIOBase):
class AsyncWriter:
    """The bytes of one object of a publication in the making, as a binary file for asyncio. It is an async context
    manager.

    The object is a part of the publication when it is closed. A block that raises leaves it out. A writer that is never
    closed, or broke off, keeps its publication from becoming current. It keeps up to 8 MiB in memory, then it sends
    them in parts. Only one task may use it at a time.
    """

    # SYNC "Only one task": Only one thread

    __module__ = "storage_guards"

    def __init__(self, written: Written, run: Callable[[Plan[Any]], Awaitable[Any]]) -> None:
        self._written = written
        self._run = run

    async def write(self, data: Any) -> int:
        """Take all bytes of ``data``, and return how many. They are copied.

        Raises:
            TypeError: it has no bytes. Encode text.
            ValueError: the writer is closed, or broke off. Open a new one.
            GuardUnavailable: the store did not answer; nothing was published. Retry the whole publication.
        """
        return await self._run(self._written.plan_write(data))  # type: ignore[no-any-return]

    async def close(self) -> None:
        """End the object. A second call does nothing.

        Raises:
            GuardUnavailable: as :meth:`write`.
        """
        # SYNC: try:
        # SYNC:     if not self.closed:
        # SYNC:         self._run(self._written.plan_close())
        # SYNC: finally:
        # SYNC:     super().close()
        await self._run(self._written.plan_close())  # ASYNC

    # SYNC: def writable(self) -> bool:
    # SYNC:     return True

    # SYNC: def __del__(self) -> None:
    # SYNC:     """Do not close it: what an error has cut off would be taken for whole."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        with suppress(Exception):
            await self._run(self._written.plan_drop())
        # SYNC: super().close()


class AsyncStaging:
    """A publication in the making, of ``guard.publishing``: an async context manager.

    Objects are uploaded while the block runs, each under a key that nothing names. At the end of the block all of them
    become current at once. If the block raises, nothing is published, and what was uploaded stays until ``collect``.
    Several tasks may add to it, each with objects of its own.

    It does **not** keep the lease. A holder that was replaced meanwhile is refused at the end of the block.

    Attributes:
        publication: the new publication, after the block. None before.
    """

    # SYNC "Several tasks": Several threads

    __module__ = "storage_guards"

    def __init__(
        self,
        publishing: Publishing,
        *,
        run: Callable[[Plan[Any], Progress | None], Awaitable[Any]],
        verify: Callable[[], Awaitable[object]],
        publication: Callable[[Published], AsyncPublication],
        sending: Sending,
        progress: Progress | str | None,
        title: str,
    ) -> None:
        self.publication: AsyncPublication | None = None
        self._publishing = publishing
        self._perform_plan = run
        self._verify = verify
        self._new_publication = publication
        self._sending = sending
        self._progress = progress
        self._title = title
        self._report: Progress | None = None
        self._stack = ExitStack()
        self._is_open = False

    async def add(self, name: str, body: Any) -> None:
        """Upload one object, or carry an entry over.

        Small bodies may still be under way when it returns. An object of the same name that is kept is replaced.

        Args:
            name: as for ``publish``.
            body: likewise.

        Raises:
            TypeError, ValueError: the name or the body is malformed, was added before, or was read before.
            RuntimeError: the block has not begun, or is over.
            GuardUnavailable: the store did not answer; nothing was published. Retry the whole publication.
        """
        self._require_open()
        await self._run(self._publishing.plan_add(name, body))

    def open(
        self,
        name: str,
        *,
        content_type: str = "",
        cache_control: str = "",
        metadata: Mapping[str, str] = NO_TEXTS,
        tags: Mapping[str, str] = NO_TEXTS,
    ) -> AsyncWriter:
        """Begin one object, whose bytes a writer takes.

        Args:
            name: as for ``publish``.
            content_type, cache_control, metadata, tags: as for :class:`Upload`.

        Raises:
            TypeError, ValueError, RuntimeError: as :meth:`add`.
        """
        self._require_open()
        upload = Upload(b"", content_type, cache_control, metadata, tags)
        return AsyncWriter(self._publishing.open(name, upload), self._run)

    def remove(self, name: str) -> None:
        """Leave out an object, or all objects of a folder: what is kept, and what was added. There may be none.

        Raises:
            ValueError: one of them is still being written. Close its writer first.
        """
        self._publishing.remove(name)

    # SYNC: filesystem = filesystem

    @property
    def names(self) -> list[str]:
        """The names of all objects so far: the kept ones, and those that were added."""
        return self._publishing.names

    async def __aenter__(self) -> Self:
        if self._is_open or self.publication is not None:
            raise RuntimeError("this publication was begun before; call publishing() again")
        await self._verify()
        with ExitStack() as stack:
            self._report = stack.enter_context(reported(self._progress, self._title))
            stack.enter_context(restored(self._publishing.bodies.read))
            await self._run(self._publishing.plan_begin())
            self._stack = stack.pop_all()
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        with self._stack:
            if error is None:
                await self._publish()
                return
            with suppress(Exception):
                await self._run(self._publishing.plan_abort())
            self._stack.pop_all().__exit__(kind, error, trace)

    async def _publish(self) -> None:
        try:
            self.publication = self._new_publication(await self._run(self._publishing.plan_end()))
        except BaseException as error:  # noqa: BLE001 - raised again, with its meaning
            with suppress(Exception):
                await self._run(self._publishing.plan_abort())
            raise self._sending.explain(error)  # noqa: B904 - it sets the cause

    async def _run(self, plan: Plan[Any]) -> Any:
        return await self._perform_plan(plan, self._report)

    def _require_open(self) -> None:
        if not self._is_open:
            raise RuntimeError("objects can be added in the block of `with guard.publishing(...)` only")
