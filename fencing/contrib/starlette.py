"""A busy lock in Starlette and FastAPI: an answer that says when to try again. See docs/recipes/fastapi.md."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fencing.contrib.answers import Answers
from fencing.kernel.errors import CoordinatorUnavailable, GuardUnavailable, NotAcquired

try:
    from starlette.requests import HTTPConnection
    from starlette.responses import Response
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "starlette":
        raise
    raise ModuleNotFoundError(
        "fencing.contrib.starlette needs starlette, which is not installed: pip install starlette", name=error.name
    ) from error

Handlers = dict[int | type[Exception], Callable[[Any, Any], Coroutine[Any, Any, Response]]]


def exception_handlers(*, busy: int = 503, retry_after: int = 1) -> Handlers:
    """Return handlers for the errors of a lock that a request did not get, for the argument of that name::

        app = FastAPI(exception_handlers=exception_handlers())

    The answers are problem details (RFC 9457) with ``Retry-After``. NotAcquired: the status ``busy``.
    CoordinatorUnavailable and GuardUnavailable: 503. They say neither the lock's name nor its holder; the log does.

    They promise **nothing about what the request did before** the error: take its locks before its first effect. All
    other errors are raised as they are, and so are these where a retry does not help. That is a service that refuses a
    password or a right, and a lock that the same task already holds. An error in a websocket, or behind a gate of
    ``FencingMiddleware``, is raised, too.

    Args:
        busy: the status for a lock that another holder has, 400 to 599. 503 is for programs, many of which try again by
            themselves. 409 is for people, and no monitor takes it for a failure of the service.
        retry_after: seconds, for the header ``Retry-After``. About as long as the lock is mostly held.

    Returns:
        Handlers by the class of the error. Add your own with ``{**exception_handlers(), KeyError: …}``.

    Raises:
        TypeError, ValueError: an argument has a wrong value. Correct it as the message says.
    """
    answers = Answers(busy, retry_after)

    async def handle(connection: HTTPConnection, error: Exception) -> Response:
        answer = answers.answer(error, connection.scope) if connection.scope["type"] == "http" else None
        if answer is None:
            raise error
        return Response(answer.body, answer.status, dict(answer.headers))

    return dict.fromkeys((NotAcquired, CoordinatorUnavailable, GuardUnavailable), handle)
