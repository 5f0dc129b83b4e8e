"""The only code that talks to an object store: obstore's asyncio functions, each within a bound.

obstore repeats requests by itself, for minutes where nothing stops it. Here each request ends at its bound: it is
cancelled, and obstore drops it and does not repeat it. The store may have received it all the same.

While obstore repeats a request, its answers are not seen. It also repeats a 501, by which a store refuses for good. So
there is a second client, which repeats nothing. The probe sends the first requests through it. Later a request goes
through it if the last one of its kind had no answer.
"""

from __future__ import annotations

import asyncio
import atexit
import time
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

from obstore import sign_async
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from fencing.kernel.errors import GuardNotEnforceable
from fencing.kernel.process import after_fork
from fencing.kernel.retry import LEAST_SECONDS
from storage_guards.objects.batch import Batch
from storage_guards.objects.errors import (
    STORE_ERRORS,
    brief,
    is_first_attempt,
    is_repeated_refusal,
    map_error,
    other_object,
    require_bucket,
)
from storage_guards.objects.requests import (
    CREATE,
    PAGE,
    Abort,
    Add,
    Begin,
    BeginBatch,
    Conflict,
    Deadline,
    Delete,
    Finish,
    Found,
    Get,
    List,
    Listed,
    Lost,
    Open,
    Put,
    Read,
    Send,
    Sign,
    Together,
    Unrepeated,
    Version,
)

T = TypeVar("T")

PIECE = 2**20
"""The least number of bytes that a stream gives at a time."""

METHODS = ("get_async", "put_async", "delete_async", "list")

COPIED = (S3Store, GCSStore, AzureStore)

ONCE_SHARE = 0.3
"""The share of a request's time that the client without repetitions may take before the store itself is asked."""

DELETED_AT_ONCE = 10
PARTS_AT_ONCE = 3

_SETTLE_SECONDS = 0.05
"""See https://github.com/PyO3/pyo3-async-runtimes/issues/40"""

_used = _forked = False


def _in_child() -> None:
    global _forked
    _forked = _used


after_fork(_in_child)


def was_used() -> bool:
    """Return whether a request was made in this process, so that obstore's threads are there."""
    return _used and not _forked


@atexit.register  # before the loop of the sync guard registers its end, so it is called after that
def _settle() -> None:
    """Let obstore's threads leave Python. The process would abort if they returned to an interpreter that is gone."""
    if was_used():
        time.sleep(_SETTLE_SECONDS)


class ObjectIO:
    """The access to one store.

    Args:
        store: an obstore store, or an object with its asyncio methods.

    Raises:
        TypeError: it is no such object.
    """

    def __init__(self, store: Any) -> None:
        missing = [name for name in METHODS if not callable(getattr(store, name, None))]
        if missing or isinstance(store, type):
            kind = type(store).__name__
            raise TypeError(f"an obstore store is needed, such as obstore.store.S3Store(...), not {kind}")
        self.store = store
        self.form = "as given"
        """The form of an ETag in a condition. The probe finds it out."""
        self._without_repetitions: ObjectIO | None = None
        self._is_same = False  # whether both clients are of one store: the environment may have changed
        self._unanswered: set[object] = set()  # the kinds of requests whose last one ended at its bound

    async def perform(self, request: Any) -> Any:
        """Do one request.

        Raises:
            Conflict: the store refused the condition of a put; or it did the put, and refused the repetition.
            Lost: no answer, or none that says whether the request was done.
            GuardNotEnforceable: the store will never do this in its set-up. The text says why.
        """
        global _used
        if _forked:
            raise GuardNotEnforceable(
                "obstore was used before this process was forked, and its threads do not exist in the child: fork "
                "before the first use, or start processes with 'spawn'"
            )
        _used = True
        match request:
            case Get() | Put() | Delete() | List():
                return await self._perform_seen(request)
            case Unrepeated():
                return await self._perform_unrepeated(request.request)
            case Open():
                return await self._open(request)
            case Read():
                piece = await _bounded(_next(request.stream), request.seconds, f"reading {request.key}")
                return None if piece is None else bytes(piece)
            case Sign():
                urls = sign_async(self.store, "GET", list(request.keys), timedelta(seconds=request.valid))
                return await _bounded(urls, request.seconds, f"signing {len(request.keys)} URLs")
            case Begin():
                return _Upload(self.store, request)
            case Send(upload=_Upload() as upload):
                return await upload.send(request.piece)
            case BeginBatch():
                return Batch(request.seconds, self._perform_seen)
            case Add(batch=Batch() as batch):
                return await batch.add(request.request)
            case Finish(upload=_Upload() | Batch() as begun):
                return await begun.finish()
            case Abort(upload=_Upload() | Batch() as begun):
                return await begun.abort(request.seconds)
            case Together():
                return await asyncio.gather(*map(self._perform_one_of, request.requests), return_exceptions=True)
        raise TypeError(f"no such request: {request!r}")

    async def _perform(self, request: Get | Put | Delete | List) -> Any:
        match request:
            case Get():
                return await self._get(request)
            case Put():
                return await self._put(request)
            case Delete():
                return await self._delete(request)
            case List():
                return await self._list(request)

    async def _perform_one_of(self, request: Get | Put) -> Any:
        """Do one of several requests. Conditional puts that race say nothing about the store's later answers."""
        return await (self._perform_seen(request) if isinstance(request, Get) else self._perform(request))

    async def _perform_seen(self, request: Get | Put | Delete | List) -> Any:
        """Do a request. If the last one of its kind had no answer, send it by the client without repetitions first."""
        kind = type(request), isinstance(request, Put) and request.condition is not None
        may_be_done = False
        if kind in self._unanswered and self._without_repetitions is not None and self._is_same:
            started = time.monotonic()
            self._unanswered.discard(kind)
            self._without_repetitions.form = self.form
            try:
                return await self._without_repetitions._perform(_part(request, ONCE_SHARE))
            except GuardNotEnforceable as error:
                if is_repeated_refusal(error):
                    self._unanswered.add(kind)
                    raise
            except Lost:
                may_be_done = kind == (Put, True)
            request = _part(request, 1 - (time.monotonic() - started) / request.seconds)
        try:
            return await self._perform(request)
        except Lost as error:
            if isinstance(error.__cause__, TimeoutError):
                self._unanswered.add(kind)
            raise
        except GuardNotEnforceable as error:
            if may_be_done:
                raise Lost(str(error), error) from error
            raise

    async def _perform_unrepeated(self, request: Put | Delete | List) -> Any:
        if self._without_repetitions is None and (client := without_repetitions(self.store)) is not None:
            self._without_repetitions, self._is_same = ObjectIO(client), False
        if self._without_repetitions is None or not (self._is_same or isinstance(request, Put)):
            raise Lost("there is no client without repetitions")
        try:
            reply = await self._without_repetitions._perform(request)
        except (Conflict, GuardNotEnforceable) as error:
            if isinstance(error, GuardNotEnforceable) and is_repeated_refusal(error):
                raise
            raise Lost(str(error)) from error
        if not isinstance(request, Put):
            return reply
        found = await self._get(Get(request.key, len(request.data), request.seconds))
        self._is_same = found is not None and found.data == request.data
        if not self._is_same:
            raise Lost("the client without repetitions is not of the same store")
        return found

    @property
    def has_tags(self) -> bool:
        """Whether the store keeps tags of objects. obstore drops them for Google Cloud Storage, and says nothing."""
        return not isinstance(self.store, GCSStore)

    async def _find(self, key: str, **options: Any) -> Any:
        try:
            return await self.store.get_async(key, options=options or None)
        except FileNotFoundError as error:
            require_bucket(error, key)
            return None

    async def _open(self, request: Open) -> Any:
        options = {} if request.part is None else {"range": request.part}
        found = await _bounded(self._find(request.key, **options), request.seconds, f"reading {request.key}")
        if found is None:
            return None
        size = found.meta["size"]
        if request.size not in (None, size):
            raise other_object(request.key, f"{size} bytes instead of {request.size}")
        if request.part is not None and found.range != request.part:
            raise Lost(f"the store gave the bytes {found.range} instead of {request.part}")
        return found.stream(min_chunk_size=PIECE)

    async def _get(self, request: Get) -> Found | None:
        async def read() -> Found | None:
            result = await self._find(request.key, **({"head": True} if request.head else {}))
            if result is None:
                return None
            meta = result.meta
            small = meta["size"] <= request.limit and not request.head
            data = bytes(await result.bytes_async()) if small else b""
            version = Version(meta.get("e_tag"), meta.get("version"))
            return Found(data, version, meta["size"], meta["last_modified"], dict(result.attributes))

        return await _bounded(read(), request.seconds, f"reading {request.key}")

    async def _put(self, request: Put) -> Version:
        action = f"storing {request.key}"
        put = self.store.put_async(
            request.key,
            request.data,
            attributes=dict(request.attributes) or None,
            mode=self._mode(request),
            use_multipart=False,
            **_tags(request),
        )
        try:
            result = await _bounded(put, request.seconds, action, conditional=request.condition is not None)
        except FileNotFoundError as error:
            require_bucket(error, request.key)
            if request.condition not in (None, CREATE):
                raise Conflict(brief(error)) from error
            if not is_first_attempt(error):
                raise Lost(f"{action}: {brief(error)}") from error
            # A put without a condition, or a creation, needs no object.
            raise GuardNotEnforceable(f"{action}: not found: is there such a bucket? {brief(error)}") from error
        except GuardNotEnforceable as error:
            is_known = request.condition is None or is_first_attempt(error.__cause__)
            if isinstance(error.__cause__, BaseError) and not is_known:
                raise Lost(str(error), error) from error
            raise
        stored = Version(result.get("e_tag"), result.get("version"))
        if stored == request.condition:  # as after a redirection that turns a put into a get
            raise Lost(f"{action}: the store answered with the old version")
        return stored

    def _mode(self, request: Put) -> Any:
        condition = request.condition
        if condition is None:
            return "overwrite"
        if not isinstance(condition, Version):
            return "create"
        # S3 and Azure compare the ETag, Google Cloud Storage the generation, which obstore calls the version.
        # obstore cannot compare the metageneration, and need not: a guard changes an object only by a put of its
        # bytes, which makes a new generation.
        mode = {}
        if condition.e_tag is not None:
            mode["e_tag"] = write_etag(condition.e_tag, request.form or self.form)
        if condition.version is not None:
            mode["version"] = condition.version
        if not mode:
            raise GuardNotEnforceable(
                f"storing {request.key}: the store no longer gives an ETag or a version; use a store that gives one"
            )
        return mode

    async def _delete(self, request: Delete) -> None:
        keys = list(request.keys)
        action = f"deleting {len(keys)} objects"
        try:
            await _bounded(self.store.delete_async(keys), request.seconds, action)
        except FileNotFoundError as error:
            # One object was gone already. A store for which this is an error may have kept the others.
            require_bucket(error, *keys)
            await _bounded(self._delete_each(keys), request.seconds, action)

    async def _delete_each(self, keys: list[str]) -> None:
        for start in range(0, len(keys), DELETED_AT_ONCE):
            some = map(self.store.delete_async, keys[start : start + DELETED_AT_ONCE])
            for ended in await asyncio.gather(*some, return_exceptions=True):
                if isinstance(ended, BaseException) and not isinstance(ended, FileNotFoundError):
                    raise ended

    async def _list(self, request: List) -> list[Listed]:
        found: list[Listed] = []
        action = f"listing {request.directory}"
        offset = {"offset": request.after} if request.after else {}
        pages = self.store.list(request.directory, chunk_size=PAGE, **offset)
        deadline = Deadline(request.seconds)
        try:
            while len(found) < request.limit:
                if deadline.over:  # pages may be empty, without end
                    raise Lost(f"{action} did not end within {request.seconds:.3g} s")
                page = await _bounded(_next(pages), request.page_seconds, action)
                if page is None:
                    break
                found.extend(Listed(each["path"], each["size"], each["last_modified"]) for each in page)
        except FileNotFoundError as error:
            require_bucket(error, request.directory)
        return found[: request.limit]


async def _bounded(awaitable: Awaitable[T], seconds: float | None, action: str, *, conditional: bool = False) -> T:
    """Await the result within the bound, and map obstore's errors, except FileNotFoundError.

    Args:
        conditional: it is a put under a condition. Only that can be a :class:`Conflict`.
    """
    try:
        async with asyncio.timeout(seconds):
            return await awaitable
    except TimeoutError as error:
        raise Lost(f"{action}: no answer" + ("" if seconds is None else f" within {seconds:.3g} s")) from error
    except FileNotFoundError:
        raise
    except STORE_ERRORS as error:
        raise map_error(error, action, conditional=conditional) from error


def without_repetitions(store: Any) -> Any:
    """Return a client for the same store that repeats no request. None: it cannot be made, or would be no other.

    It takes over all arguments of the store. Only the environment may have changed since, so its user must check that
    it is the same store.
    """
    if type(store) not in COPIED or vars(store):
        return None
    retries = dict(store.retry_config or {})
    if retries.get("max_retries") == 0:
        return None
    try:
        return type(store)(
            prefix=store.prefix,
            config=store.config,
            client_options=store.client_options,
            retry_config={**retries, "max_retries": 0},
            credential_provider=store.credential_provider,
        )
    except Exception:  # noqa: BLE001 - then the store itself has to do
        return None


def _part(request: Any, share: float) -> Any:
    """Return the request with a share of its time."""
    if isinstance(request, List):
        return replace(request, page_seconds=max(request.page_seconds * share, LEAST_SECONDS))
    return replace(request, seconds=max(request.seconds * share, LEAST_SECONDS))


def write_etag(e_tag: str, form: str) -> str:
    """Return an ETag in the form that a store accepts. Some stores also compare the quotes, and some leave them out."""
    if form == "unquoted":
        return e_tag.removeprefix('"').removesuffix('"')
    if form == "quoted":
        return e_tag if e_tag.startswith(('"', "W/")) else f'"{e_tag}"'
    return e_tag


def _tags(request: Put | Begin) -> dict[str, Any]:
    return {"tags": dict(request.tags)} if request.tags else {}


async def _next(iterator: Any) -> Any:
    try:
        return await iterator.__anext__()
    except StopAsyncIteration:
        return None


class _Upload:
    """One upload in parts. All its methods run on one event loop."""

    def __init__(self, store: Any, begin: Begin) -> None:
        self._store = store
        self._begin = begin
        self._action = f"storing {begin.key}"
        self._pieces: asyncio.Queue[bytes | memoryview | BaseException | None] = asyncio.Queue(1)
        self._put: asyncio.Future[Any] | None = None

    async def send(self, piece: bytes | memoryview | None) -> None:
        """Hand over a piece when there is room for it. None: the body has ended.

        Raises:
            Lost: the store made no progress, or the upload broke off.
        """
        if self._put is None:
            self._put = asyncio.ensure_future(self._put_pieces())
        seconds = self._begin.seconds
        room = asyncio.ensure_future(self._pieces.put(piece))
        try:
            await asyncio.wait([room, self._put], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if self._put.done():
                self._put.result()
                if piece is not None:
                    raise Lost(f"{self._action} ended early")
            elif not room.done():
                raise Lost(f"{self._action} made no progress for {seconds:.3g} s")
        finally:
            room.cancel()

    async def finish(self) -> None:
        """Hand over the end, and wait until the store has all of it."""
        await self.send(None)
        assert self._put is not None
        await asyncio.wait([self._put], timeout=self._begin.seconds)
        if not self._put.done():
            raise Lost(f"{self._action} did not end within {self._begin.seconds:.3g} s of its last byte")
        self._put.result()

    async def abort(self, seconds: float) -> None:
        if self._put is None:
            return
        try:
            if not self._put.done():
                while not self._pieces.empty():
                    self._pieces.get_nowait()
                self._pieces.put_nowait(_Aborted())
                await asyncio.wait([self._put], timeout=seconds)
        finally:
            if not self._put.done():
                self._put.cancel()
            elif not self._put.cancelled():
                self._put.exception()  # retrieved, so that asyncio does not report it

    async def _put_pieces(self) -> None:
        put = self._store.put_async(
            self._begin.key,
            self._queued_pieces(),
            attributes=dict(self._begin.attributes) or None,
            use_multipart=True,
            chunk_size=self._begin.part_size,
            max_concurrency=PARTS_AT_ONCE,
            **_tags(self._begin),
        )
        try:
            await _bounded(put, None, self._action)  # bounded by the waits in send() and finish()
        except FileNotFoundError as error:
            raise Lost(f"{self._action}: {error}") from error

    async def _queued_pieces(self) -> AsyncIterator[bytes | memoryview]:
        while (piece := await self._pieces.get()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            yield piece


class _Aborted(Exception):
    pass
