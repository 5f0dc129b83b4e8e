# Made from publication_async.py by `make faces`: change that file, not this one.
"""Publications for readers, and streams of their bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Self

from fencing.kernel.effects import Plan
from storage_guards.objects.reading import PublicationBase, Reading


class Stream:
    """The bytes of one object: iterate for chunks, or :meth:`read` as from a binary file. It is a context manager.

    An end without an error means that all bytes came. After an error, also Ctrl-C, it cannot be continued: open the
    object again.
    """

    __module__ = "storage_guards"

    def __init__(self, reading: Reading, perform: Callable[[Plan[bytes]], bytes]) -> None:
        self._reading = reading
        self._perform = perform

    def __iter__(self) -> Iterator[bytes]:
        while chunk := self._perform(self._reading.plan_chunk()):
            yield chunk

    def read(self, size: int = -1) -> bytes:
        """Read ``size`` bytes, fewer only at the end. A negative size reads all that are left.

        Raises:
            GuardUnavailable: the reading broke off. Open the object again.
        """
        return self._perform(self._reading.plan_read(size))

    def close(self) -> None:
        """Drop the rest. The stream gives no more bytes."""
        self._reading.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reading.close()


class Publication(PublicationBase):
    __module__ = "storage_guards"

    __doc__ = PublicationBase.__doc__

    __slots__ = ()

    def open(self, name: str) -> Stream:
        """Open the bytes of one object, as a stream.

        Raises:
            KeyError: there is no such object.
            StaleRead: it has been replaced since, and its data were collected. Read the publication again.
            GuardUnavailable: the store did not answer. Retry.
        """
        return Stream(self._perform(self._plan_open(name)), self._perform)

    def read(self, name: str) -> bytes:
        """Read all bytes of one object into memory.

        Raises:
            KeyError, StaleRead: as :meth:`open`.
            GuardUnavailable: the store did not answer, or the reading broke off. Retry.
        """
        return self._perform(self._plan_read(name))  # type: ignore[no-any-return]

    def read_all(self, names: Iterable[str] | None = None) -> dict[str, bytes]:
        """Read the bytes of several objects into memory: up to 16 at the same time, or one of more than 8 MiB.

        Args:
            names: of the objects. None: all of the publication.

        Returns:
            Their bytes by name.

        Raises:
            KeyError, StaleRead: as :meth:`open`.
            GuardUnavailable: the store did not answer, or a reading broke off. Retry.
        """
        return self._perform(self._plan_read_all(names))  # type: ignore[no-any-return]
