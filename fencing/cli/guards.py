"""The guards that ``--guard`` names, by URL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fencing.cli.files import require_file
from fencing.kernel.extras import raise_missing
from fencing.locks.urls import redacted, scheme_of

SCHEMES = (
    "postgresql, mysql, mariadb, sqlite, redis, rediss, redis+cluster, redis+sentinel, unix, s3, gs, az, file, http, "
    "https"
)


def guard_of(url: str) -> Any:
    """Return a new guard of a URL: a database, a Redis, a bucket, a folder, or a service behind HTTP.

    Raises:
        ValueError: it is no URL of a guard.
        ModuleNotFoundError: the storage's client is not installed. Install it as the message says.
    """
    scheme = scheme_of(url)
    make = _MAKERS.get(scheme.partition("+")[0])
    if make is None:
        raise ValueError(f"{redacted(url)!r:.200} is no URL of a guard; their schemes are {SCHEMES}")
    try:
        return make(url)
    except ModuleNotFoundError as error:
        raise_missing(f"{scheme}://", error)


def _sql_guard(url: str) -> Any:
    from fencing.sql.urls import engine_of
    from storage_guards import SQLAlchemyGuard

    require_file(url, "'fencing create-tables URL' makes it")
    return SQLAlchemyGuard(engine_of(url, asynchronous=False))


def _redis_guard(url: str) -> Any:
    from fencing.redis.urls import client_of
    from storage_guards import RedisGuard

    return RedisGuard(client_of(url, asynchronous=False))


def _object_guard(url: str) -> Any:
    from storage_guards import ObjectStoreGuard

    return ObjectStoreGuard(store_of(url))


def store_of(url: str) -> Any:
    """Return the object store of a URL. Its credentials come from the environment, as those of its own tools.

    Raises:
        ValueError: it is no URL of a bucket.
        ModuleNotFoundError: obstore is not installed.
    """
    from obstore.store import from_url

    try:
        return from_url(url)
    except Exception as error:  # obstore's own have no common base that is public
        raise ValueError(
            f"{redacted(url)!r:.200} is no URL of a bucket such as 's3://bucket/folder': {error}"
        ) from error


def _file_guard(url: str) -> Any:
    from storage_guards import FileGuard

    folder = url.removeprefix("file://")
    if not folder.startswith("/"):
        raise ValueError(
            f"{redacted(url)!r:.200} names no folder: three slashes begin an absolute path, as in file:///srv/data"
        )
    return FileGuard(folder)


def _http_guard(url: str) -> Any:
    import httpx2

    from storage_guards import HTTPGuard

    return HTTPGuard(url, httpx2.Client())


_MAKERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("postgresql", "postgres", "mysql", "mariadb", "sqlite"), _sql_guard),
    **dict.fromkeys(("redis", "rediss", "unix"), _redis_guard),
    **dict.fromkeys(("s3", "gs", "az"), _object_guard),
    "file": _file_guard,
    **dict.fromkeys(("http", "https"), _http_guard),
}
