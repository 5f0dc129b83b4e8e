"""What a write knows of the request that counts: for guards that check and write in one request."""

from __future__ import annotations

from fencing.kernel.errors import OutcomeUnknown


class Sending:
    """What a write of the caller's knows of the request that counts, while that may be under way.

    Any line may be interrupted: by Ctrl-C, a cancellation, or an exception that a signal handler raises. So this is set
    before the request is sent, and cleared when it is certain that it never lands.

    Attributes:
        unknown: the error for ``landed`` to decide; None: nothing was sent that may land.
    """

    __slots__ = ("unknown",)

    def __init__(self) -> None:
        self.unknown: OutcomeUnknown | None = None

    def explain(self, error: BaseException) -> BaseException:
        """Return the error to raise for ``error``, which ended the write.

        Where the request may have landed, an exception becomes the OutcomeUnknown, with the exception as its cause.
        Ctrl-C and a cancellation stay what they are, with the OutcomeUnknown as their cause.
        """
        unknown = self.unknown
        if unknown is None or self._is_explained_by(error) or self._is_explained_by(error.__cause__):
            return error
        if isinstance(error, Exception):
            unknown.__cause__ = error
            return unknown
        error.__cause__ = unknown
        return error

    def _is_explained_by(self, error: BaseException | None) -> bool:
        unknown = self.unknown
        return isinstance(error, OutcomeUnknown) and error.recent_writes == getattr(unknown, "recent_writes", None)
