# Made from staging_async.py by `make faces`: change that file, not this one.
"""Publications in the making: objects are added one after the other, or written by a writer."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, Self

from fencing.kernel.effects import Plan
from storage_guards.objects.bodies import restored
from storage_guards.objects.pointer import Published
from storage_guards.objects.progress import Progress, reported
from storage_guards.objects.publication import Publication
from storage_guards.objects.publishing import Publishing, Written
from storage_guards.objects.staged_files import filesystem
from storage_guards.objects.upload import NO_TEXTS, Upload
from storage_guards.sending import Sending


class Writer(io.RawIOBase):
    """The bytes of one object of a publication in the making, as a binary file. It is a context manager.

    The object is a part of the publication when it is closed. A block that raises leaves it out. A writer that is never
    closed, or broke off, keeps its publication from becoming current. It keeps up to 8 MiB in memory, then it sends
    them in parts. Only one thread may use it at a time.
    """

    __module__ = "storage_guards"

    def __init__(self, written: Written, run: Callable[[Plan[Any]], Any]) -> None:
        self._written = written
        self._run = run

    def write(self, data: Any) -> int:
        """Take all bytes of ``data``, and return how many. They are copied.

        Raises:
            TypeError: it has no bytes. Encode text.
            ValueError: the writer is closed, or broke off. Open a new one.
            GuardUnavailable: the store did not answer; nothing was published. Retry the whole publication.
        """
        return self._run(self._written.plan_write(data))  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the object. A second call does nothing.

        Raises:
            GuardUnavailable: as :meth:`write`.
        """
        try:
            if not self.closed:
                self._run(self._written.plan_close())
        finally:
            super().close()

    def writable(self) -> bool:
        return True

    def __del__(self) -> None:
        """Do not close it: what an error has cut off would be taken for whole."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        with suppress(Exception):
            self._run(self._written.plan_drop())
        super().close()


class Staging:
    """A publication in the making, of ``guard.publishing``: a context manager.

    Objects are uploaded while the block runs, each under a key that nothing names. At the end of the block all of them
    become current at once. If the block raises, nothing is published, and what was uploaded stays until ``collect``.
    Several threads may add to it, each with objects of its own.

    It does **not** keep the lease. A holder that was replaced meanwhile is refused at the end of the block.

    Attributes:
        publication: the new publication, after the block. None before.
    """

    __module__ = "storage_guards"

    def __init__(
        self,
        publishing: Publishing,
        *,
        run: Callable[[Plan[Any], Progress | None], Any],
        verify: Callable[[], object],
        publication: Callable[[Published], Publication],
        sending: Sending,
        progress: Progress | str | None,
        title: str,
    ) -> None:
        self.publication: Publication | None = None
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

    def add(self, name: str, body: Any) -> None:
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
        self._run(self._publishing.plan_add(name, body))

    def open(
        self,
        name: str,
        *,
        content_type: str = "",
        cache_control: str = "",
        metadata: Mapping[str, str] = NO_TEXTS,
        tags: Mapping[str, str] = NO_TEXTS,
    ) -> Writer:
        """Begin one object, whose bytes a writer takes.

        Args:
            name: as for ``publish``.
            content_type, cache_control, metadata, tags: as for :class:`Upload`.

        Raises:
            TypeError, ValueError, RuntimeError: as :meth:`add`.
        """
        self._require_open()
        upload = Upload(b"", content_type, cache_control, metadata, tags)
        return Writer(self._publishing.open(name, upload), self._run)

    def remove(self, name: str) -> None:
        """Leave out an object, or all objects of a folder: what is kept, and what was added. There may be none.

        Raises:
            ValueError: one of them is still being written. Close its writer first.
        """
        self._publishing.remove(name)

    filesystem = filesystem

    @property
    def names(self) -> list[str]:
        """The names of all objects so far: the kept ones, and those that were added."""
        return self._publishing.names

    def __enter__(self) -> Self:
        if self._is_open or self.publication is not None:
            raise RuntimeError("this publication was begun before; call publishing() again")
        self._verify()
        with ExitStack() as stack:
            self._report = stack.enter_context(reported(self._progress, self._title))
            stack.enter_context(restored(self._publishing.bodies.read))
            self._run(self._publishing.plan_begin())
            self._stack = stack.pop_all()
        self._is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        with self._stack:
            if error is None:
                self._publish()
                return
            with suppress(Exception):
                self._run(self._publishing.plan_abort())
            self._stack.pop_all().__exit__(kind, error, trace)

    def _publish(self) -> None:
        try:
            self.publication = self._new_publication(self._run(self._publishing.plan_end()))
        except BaseException as error:  # noqa: BLE001 - raised again, with its meaning
            with suppress(Exception):
                self._run(self._publishing.plan_abort())
            raise self._sending.explain(error)  # noqa: B904 - it sets the cause

    def _run(self, plan: Plan[Any]) -> Any:
        return self._perform_plan(plan, self._report)

    def _require_open(self) -> None:
        if not self._is_open:
            raise RuntimeError("objects can be added in the block of `with guard.publishing(...)` only")
