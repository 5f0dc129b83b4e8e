# Made from publication_async.py by `make faces`: change that file, not this one.
"""Publications for readers."""

from __future__ import annotations

from collections.abc import Iterable

from storage_guards.objects.reading import PublicationBase
from storage_guards.objects.stream import Stream


class Publication(PublicationBase):
    __module__ = "storage_guards"

    __doc__ = PublicationBase.__doc__

    __slots__ = ()

    def open(self, name: str) -> Stream:
        """Open the bytes of one object, as a file that can seek. The store is first asked where bytes are read.

        Raises:
            KeyError: there is no such object.
        """
        return Stream(name, self._reading(name), self._perform)

    def read(self, name: str) -> bytes:
        """Read all bytes of one object into memory.

        Raises:
            KeyError: there is no such object.
            StaleRead: it has been replaced since, and its data were collected. Read the publication again.
            GuardUnavailable: the store did not answer, or the reading broke off. Retry.
            GuardNotEnforceable: the object has other bytes than were published. The text says what to do.
        """
        return self._perform(self._plan_read(name))  # type: ignore[no-any-return]

    def read_all(self, names: Iterable[str] | None = None) -> dict[str, bytes]:
        """Read the bytes of several objects into memory: up to 16 at the same time, or one of more than 8 MiB.

        Args:
            names: of the objects. None: all of the publication.

        Returns:
            Their bytes by name.

        Raises:
            KeyError, StaleRead, GuardNotEnforceable: as :meth:`read`.
            GuardUnavailable: the store did not answer, or a reading broke off. Retry.
        """
        return self._perform(self._plan_read_all(names))  # type: ignore[no-any-return]

    def signed_urls(self, seconds: float, names: Iterable[str] | None = None) -> dict[str, str]:
        """Return an ``https://`` URL of each object, with which anyone may get it for a while.

        It does **not** ask whether the data are still there. Whoever has such a URL reads this publication, or nothing
        once it was collected.

        Args:
            seconds: how long they are valid: up to seven days, and on S3 no longer than temporary credentials are.
            names: of the objects. None: all of the publication.

        Returns:
            The URLs by name.

        Raises:
            KeyError: there is no such object.
            ValueError: the store cannot sign, or not this key, or ``seconds`` is out of range. The text says which.
            GuardUnavailable: the store has no credentials that can sign, or they could not be got. The text says why.
        """
        return self._perform(self._plan_sign(seconds, names))  # type: ignore[no-any-return]
