"""The meaning of obstore's errors for the guard.

An error of obstore has a type, and a text that ends with all of its sources. Some facts are in the text only: whether a
bucket or just an object is missing, and whether obstore had repeated the request.
"""

from __future__ import annotations

import re

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from fencing.kernel.errors import GuardNotEnforceable
from storage_guards.objects.requests import Conflict, Lost

STORE_ERRORS = (BaseError, OSError, NotImplementedError)

_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "bucket does not exist", "container does not exist")
_STATUS = re.compile(r"status code: ([0-9]{3})\b")
_PERMANENT = ("400", "405", "411", "501")
_PASSING = ("RequestTimeout", "IncompleteBody", "BadDigest", "SHA256Mismatch", "SlowDown", "OperationAborted")
"""Codes that S3 gives with the status 400, and that a repetition may not get again."""

_REPEATED = "501"
"""The status in ``_PERMANENT`` that obstore repeats. The guard sees it late, or never."""

_PROVIDER = re.compile(r"for path External \w+ credential provider: ")

_DENIED = (PermissionDeniedError, UnauthenticatedError)


def map_error(error: Exception, action: str, *, conditional: bool) -> Conflict | Lost | GuardNotEnforceable:
    """Return the guard's error for one of obstore. FileNotFoundError is not mapped, because its meaning depends on the
    request.

    Args:
        conditional: it was a put under a condition. The statuses 409 and 412 refuse the condition only there. Stores
            also use them for "something else is under way", and Azure for a blob that is archived.
    """
    if isinstance(error, (AlreadyExistsError, PreconditionError)):
        if conditional:
            return Conflict(brief(error))
        if "BlobArchived" in str(error) and "BlobArchived" not in action:  # not just a key of that name
            return GuardNotEnforceable(f"{action}: it is archived; rehydrate it, and keep it online: {brief(error)}")
        return Lost(f"{action}: {brief(error)}")
    if isinstance(error, _DENIED) and _PROVIDER.search(str(error)):
        return Lost(f"{action}: no credentials: {brief(error)}")  # its own service may be out of reach for a moment
    if isinstance(error, _DENIED):
        return GuardNotEnforceable(
            f"{action}: the store refused; the guard needs to read, write, list and delete below its prefix, with "
            f"valid credentials: {brief(error)}"
        )
    if isinstance(error, (NotSupportedError, NotImplementedError)):
        return GuardNotEnforceable(f"{action}: this store cannot do it: {brief(error)}")
    refused = _STATUS.search(str(error))
    if refused and refused[1] in _PERMANENT and not any(code in str(error) for code in _PASSING):
        what = "a put under a condition" if conditional else "this"
        return GuardNotEnforceable(f"{action}: the store refuses {what} with the status {refused[1]}: {brief(error)}")
    return Lost(f"{action}: {brief(error)}")


def require_bucket(error: FileNotFoundError, *keys: str) -> None:
    """Raise GuardNotEnforceable where the bucket is missing, and not just the objects with these keys."""
    text = str(error)
    if any(sign in text and not any(sign in key for key in keys) for sign in _NO_BUCKET):
        raise GuardNotEnforceable(f"there is no such bucket; create it: {brief(error)}") from error


def other_object(key: str, instead: str) -> GuardNotEnforceable:
    """Return the error for an object that is not what was published under its key."""
    return GuardNotEnforceable(
        f"{key!r} is not the object that was published: it has {instead}; something else than a guard wrote it, so "
        f"restore it from a backup, or publish again"
    )


def is_first_attempt(error: BaseException | None) -> bool:
    """Return whether obstore's text says that it did not repeat the request.

    Otherwise an earlier attempt may have been done, or may be under way. Then a refusal of the last attempt says
    nothing about it.
    """
    return "retries: 0," in str(error)


def is_repeated_refusal(error: GuardNotEnforceable) -> bool:
    """Return whether it is a refusal for good that obstore repeats."""
    refused = _STATUS.search(str(error.__cause__))
    return refused is not None and refused[1] == _REPEATED


def brief(error: BaseException) -> str:
    """Return the first line of an error; its sources follow it."""
    text = next(iter(str(error).splitlines()), "") or type(error).__name__
    return text if len(text) <= 500 else text[:497] + "..."
