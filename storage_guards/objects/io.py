"""The only code that talks to an object store: obstore's asyncio functions, each within a bound.

obstore repeats requests by itself, for minutes where nobody stops it. Here each request ends at its bound: cancelled,
obstore drops it and repeats it no more. It may all the same have reached the store.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from fencing.kernel.errors import GuardNotEnforceable
from storage_guards.objects.requests import (
    CREATE,
    PAGE,
    Await,
    Conflict,
    Delete,
    Found,
    Get,
    List,
    Listed,
    Lost,
    Open,
    Put,
    Together,
    Version,
)

__all__ = ["ObjectIO", "write_etag"]

T = TypeVar("T")

PIECE = 2**20
"""Bytes that a stream gives at a time, at least."""

METHODS = ("get_async", "put_async", "delete_async", "list")

DELETED_AT_ONCE = 10

_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "bucket does not exist", "container does not exist")
_DENIED = (PermissionDeniedError, UnauthenticatedError)

_used = _forked = False


def _after_fork() -> None:
    global _forked
    _forked = _used


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def was_used() -> bool:
    """Whether a request was made in this process, so that obstore's threads are there."""
    return _used and not _forked


class ObjectIO:
    """One store.

    Args:
        store: an obstore store, or anything with its asyncio methods.

    Raises:
        TypeError: it is not one.
    """

    def __init__(self, store: Any) -> None:
        missing = [name for name in METHODS if not callable(getattr(store, name, None))]
        if missing or isinstance(store, type):
            raise TypeError(f"an obstore store is needed, such as obstore.store.S3Store(...), not {store!r}")
        self.store = store
        self.form = "as given"
        """How an ETag is written into a condition; the probe finds out."""

    async def perform(self, request: Any) -> Any:
        """Do one request.

        Raises:
            Conflict: the store refused the condition of a put; or did it, and refused the repetition.
            Lost: no answer, or none that says what happened.
            GuardNotEnforceable: the store will never do this, set up as it is; the text says why.
        """
        global _used
        if _forked:
            raise GuardNotEnforceable(
                "obstore was used before this process was forked, and its threads do not live on in the child: fork "
                "before the first use, or start processes with 'spawn'"
            )
        _used = True
        if isinstance(request, Get):
            return await self._get(request)
        if isinstance(request, Put):
            return await self._put(request)
        if isinstance(request, Delete):
            return await self._delete(request)
        if isinstance(request, List):
            return await self._list(request)
        if isinstance(request, Open):
            found = await self._find(request.key, request.seconds)
            return None if found is None else found.stream(min_chunk_size=PIECE)
        if isinstance(request, Await):
            return await request.do(self)
        if isinstance(request, Together):
            return await asyncio.gather(*map(self.perform, request.requests), return_exceptions=True)
        raise TypeError(f"no such request: {request!r}")

    async def _find(self, key: str, seconds: float, **options: Any) -> Any:
        try:
            return await self.bounded(self.store.get_async(key, options=options or None), seconds, f"reading {key}")
        except FileNotFoundError as error:
            _require_bucket(error, key)
            return None

    async def _get(self, request: Get) -> Found | None:
        async def read() -> Found | None:
            options = {"head": True} if request.head else {}
            result = await self._find(request.key, request.seconds, **options)
            if result is None:
                return None
            meta = result.meta
            small = meta["size"] <= request.limit and not request.head
            data = bytes(await result.bytes_async()) if small else b""
            version = Version(meta.get("e_tag"), meta.get("version"))
            return Found(data, version, meta["size"], meta["last_modified"], dict(result.attributes))

        return await self.bounded(read(), request.seconds, f"reading {request.key}")

    async def _put(self, request: Put) -> Version:
        what = f"storing {request.key}"
        put = self.store.put_async(
            request.key,
            request.data,
            attributes=dict(request.attributes) or None,
            mode=self._mode(request),
            use_multipart=False,
        )
        try:
            result = await self.bounded(put, request.seconds, what)
        except FileNotFoundError as error:
            _require_bucket(error, request.key)
            if request.condition not in (None, CREATE):
                raise Conflict(_said(error)) from error
            if not _asked_once(error):
                raise Lost(f"{what}: {_said(error)}") from error
            # Nothing needs to be there.
            raise GuardNotEnforceable(f"{what}: not found: is there such a bucket? {_said(error)}") from error
        except GuardNotEnforceable as error:
            if isinstance(error.__cause__, _DENIED) and not _asked_once(error.__cause__):
                raise Lost(f"{what}: {error}") from error
            raise
        except Conflict as error:
            if request.condition is None:  # it had none: something else was in the way
                raise Lost(f"{what}: {error}") from error
            raise
        stored = Version(result.get("e_tag"), result.get("version"))
        if stored == request.condition:  # so answers whoever was redirected, and asked to read it instead
            raise Lost(f"{what}: the version is what it was")
        return stored

    def _mode(self, request: Put) -> Any:
        condition = request.condition
        if condition is None:
            return "overwrite"
        if not isinstance(condition, Version):
            return "create"
        # S3 and Azure compare the ETag, Google Cloud Storage the generation, which obstore calls the version.
        # It cannot compare the metageneration, and need not: whatever a guard changes, it changes by a put of the
        # bytes, which makes a new generation.
        mode = {}
        if condition.e_tag is not None:
            mode["e_tag"] = write_etag(condition.e_tag, request.form or self.form)
        if condition.version is not None:
            mode["version"] = condition.version
        if not mode:
            raise GuardNotEnforceable(f"storing {request.key}: the store gives neither an ETag nor a version any more")
        return mode

    async def _delete(self, request: Delete) -> None:
        keys = list(request.keys)
        what = f"deleting {len(keys)} objects"
        try:
            await self.bounded(self.store.delete_async(keys), request.seconds, what)
        except FileNotFoundError as error:
            # One of them was gone already, and where that is an error the others may be there still.
            _require_bucket(error, *keys)
            await self.bounded(self._delete_each(keys), request.seconds, what)

    async def _delete_each(self, keys: list[str]) -> None:
        for start in range(0, len(keys), DELETED_AT_ONCE):
            some = map(self._delete_one, keys[start : start + DELETED_AT_ONCE])
            for ended in await asyncio.gather(*some, return_exceptions=True):
                if ended is not None:
                    raise ended

    async def _delete_one(self, key: str) -> None:
        try:
            await self.store.delete_async(key)
        except FileNotFoundError:
            pass

    async def _list(self, request: List) -> list[Listed]:
        found: list[Listed] = []
        what = f"listing {request.directory}"
        pages = self.store.list(request.directory, chunk_size=PAGE)
        try:
            while len(found) < request.limit:
                page = await self.bounded(_next(pages), request.page_seconds, what)
                if page is None:
                    break
                found.extend(Listed(each["path"], each["size"], each["last_modified"]) for each in page)
        except FileNotFoundError as error:
            _require_bucket(error, request.directory)
        return found[: request.limit]

    async def bounded(self, awaitable: Awaitable[T], seconds: float | None, what: str) -> T:
        """The result within the bound; obstore's errors translated, but for FileNotFoundError, which depends."""
        try:
            async with asyncio.timeout(seconds):
                return await awaitable
        except TimeoutError as error:
            raise Lost(f"{what}: no answer within {seconds:.3g} s") from error
        except (FileNotFoundError, Conflict, Lost, GuardNotEnforceable):
            raise
        except (AlreadyExistsError, PreconditionError) as error:
            raise Conflict(_said(error)) from error
        except _DENIED as error:
            raise GuardNotEnforceable(
                f"{what}: the store refused; the guard needs to read, write, list and delete below its prefix, with "
                f"valid credentials: {_said(error)}"
            ) from error
        except (NotSupportedError, NotImplementedError) as error:
            raise GuardNotEnforceable(f"{what}: this store cannot do it: {_said(error)}") from error
        except (BaseError, OSError) as error:
            raise Lost(f"{what}: {_said(error)}") from error

    async def next_piece(self, stream: Any, seconds: float, key: str) -> bytes | None:
        """The next bytes of a stream, or None."""
        piece = await self.bounded(_next(stream), seconds, f"reading {key}")
        return None if piece is None else bytes(piece)


def write_etag(e_tag: str, form: str) -> str:
    """An ETag as a store wants it back: there are some that compare the quotes, too, and some that leave them out."""
    if form == "unquoted":
        return e_tag.removeprefix('"').removesuffix('"')
    if form == "quoted":
        return e_tag if e_tag.startswith(('"', "W/")) else f'"{e_tag}"'
    return e_tag


async def _next(pages: AsyncIterator[Any]) -> Any:
    try:
        return await pages.__anext__()
    except StopAsyncIteration:
        return None


def _require_bucket(error: Exception, *keys: str) -> None:
    said = str(error)
    if any(text in said and not any(text in key for key in keys) for text in _NO_BUCKET):
        raise GuardNotEnforceable(f"there is no such bucket; create it: {_said(error)}") from error


def _asked_once(error: BaseException) -> bool:
    """Whether obstore's text says that it did not repeat the request. Else an earlier attempt may have been done, or
    may be under way, and a refusal of the last says nothing of it."""
    return "retries: 0," in str(error)


def _said(error: BaseException) -> str:
    """The first line of an error of obstore's, which tells all its sources after it."""
    text = next(iter(str(error).splitlines()), "") or type(error).__name__
    return text if len(text) <= 500 else text[:497] + "..."
