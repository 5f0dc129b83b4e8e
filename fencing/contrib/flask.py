"""A busy lock in Flask, and the refusals of a guard: answers of their own. See docs/recipes/flask.md."""

from __future__ import annotations

from typing import Any

from fencing.contrib.answers import Answers
from fencing.kernel.errors import FencingError
from storage_guards.http.header import FenceRequired

try:
    from flask import Flask, Response, request
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "flask":
        raise
    raise ModuleNotFoundError(
        "fencing.contrib.flask needs flask, which is not installed: pip install flask", name=error.name
    ) from error


def register_error_handlers(app: Flask, *, busy: int = 503, retry_after: int = 1) -> None:
    """Answer the errors of a lock that a request did not get, and of a fence that a guard refused::

        app = Flask(__name__)
        register_error_handlers(app)

    The answers are problem details (RFC 9457). NotAcquired: the status ``busy``. CoordinatorUnavailable and
    GuardUnavailable: 503. Both have ``Retry-After``, and say neither the lock's name nor its holder; the log does.
    Behind ``WSGIFencingMiddleware``, a refused fence of the request gets 412, and a missing one 428.

    They promise **nothing about what the request did before** the error: take its locks before its first effect. All
    other errors go on to Flask, which answers 500. So do these where a retry does not help. That is a service that
    refuses a password or a right, and a lock that the same thread already holds.

    Args:
        app: the application. Errors of its blueprints are answered, too.
        busy: the status for a lock that another holder has, 400 to 599. 503 is for programs, many of which try again by
            themselves. 409 is for people, and no monitor takes it for a failure of the service.
        retry_after: seconds, for the header ``Retry-After``. About as long as the lock is mostly held.

    Raises:
        TypeError, ValueError: an argument has a wrong value. Correct it as the message says.
    """
    answers = Answers(busy, retry_after)

    def handle(error: Any) -> Response:
        answer = answers.answer(error, request.environ)
        if answer is None:
            raise error
        return Response(answer.body, answer.status, list(answer.headers))

    app.register_error_handler(FencingError, handle)
    app.register_error_handler(FenceRequired, handle)
