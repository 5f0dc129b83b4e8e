"""Storage guards: they keep the newest fence beside the data, and refuse holders of older ones.

Names are loaded at their first use (PEP 562). So a program that imports one guard does not import the dependencies of
the others. No guard needs the lock side of the library.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from storage_guards.files.base import FileTransaction as FileTransaction
    from storage_guards.files.guard import FileGuard as FileGuard
    from storage_guards.files.guard_async import AsyncFileGuard as AsyncFileGuard
    from storage_guards.http.asgi import FencingMiddleware as FencingMiddleware
    from storage_guards.http.fenced import fenced as fenced
    from storage_guards.http.guard import HTTPGuard as HTTPGuard
    from storage_guards.http.guard_async import AsyncHTTPGuard as AsyncHTTPGuard
    from storage_guards.http.wsgi import WSGIFencingMiddleware as WSGIFencingMiddleware
    from storage_guards.memory.guard import MemoryGuard as MemoryGuard
    from storage_guards.memory.guard_async import AsyncMemoryGuard as AsyncMemoryGuard
    from storage_guards.objects.collect import UploadFound as UploadFound
    from storage_guards.objects.filesystem import FencedFileSystem as FencedFileSystem
    from storage_guards.objects.guard import ObjectStoreGuard as ObjectStoreGuard
    from storage_guards.objects.guard_async import AsyncObjectStoreGuard as AsyncObjectStoreGuard
    from storage_guards.objects.history import PublicationFound as PublicationFound
    from storage_guards.objects.in_place import StoredObject as StoredObject
    from storage_guards.objects.pointer import Entry as Entry
    from storage_guards.objects.probe import ProbeReport as ProbeReport
    from storage_guards.objects.publication import Publication as Publication
    from storage_guards.objects.publication_async import AsyncPublication as AsyncPublication
    from storage_guards.objects.reading import PublicationDiff as PublicationDiff
    from storage_guards.objects.staging import Staging as Staging
    from storage_guards.objects.staging import Writer as Writer
    from storage_guards.objects.staging_async import AsyncStaging as AsyncStaging
    from storage_guards.objects.staging_async import AsyncWriter as AsyncWriter
    from storage_guards.objects.stream import Stream as Stream
    from storage_guards.objects.stream_async import AsyncStream as AsyncStream
    from storage_guards.objects.upload import Upload as Upload
    from storage_guards.psycopg.guard import PsycopgGuard as PsycopgGuard
    from storage_guards.psycopg.guard_async import AsyncPsycopgGuard as AsyncPsycopgGuard
    from storage_guards.redis.guard import RedisGuard as RedisGuard
    from storage_guards.redis.guard import RedisTransaction as RedisTransaction
    from storage_guards.redis.guard_async import AsyncRedisGuard as AsyncRedisGuard
    from storage_guards.redis.guard_async import AsyncRedisTransaction as AsyncRedisTransaction
    from storage_guards.sql.verify import Finding as Finding
    from storage_guards.sql.verify import VerifyReport as VerifyReport
    from storage_guards.sqlalchemy.guard import SQLAlchemyGuard as SQLAlchemyGuard
    from storage_guards.sqlalchemy.guard_async import AsyncSQLAlchemyGuard as AsyncSQLAlchemyGuard

_HOME = {
    "files.base": ("FileTransaction",),
    "files.guard": ("FileGuard",),
    "files.guard_async": ("AsyncFileGuard",),
    "http.asgi": ("FencingMiddleware",),
    "http.fenced": ("fenced",),
    "http.guard": ("HTTPGuard",),
    "http.guard_async": ("AsyncHTTPGuard",),
    "http.wsgi": ("WSGIFencingMiddleware",),
    "memory.guard": ("MemoryGuard",),
    "memory.guard_async": ("AsyncMemoryGuard",),
    "objects.collect": ("UploadFound",),
    "objects.filesystem": ("FencedFileSystem",),
    "objects.guard": ("ObjectStoreGuard",),
    "objects.guard_async": ("AsyncObjectStoreGuard",),
    "objects.history": ("PublicationFound",),
    "objects.in_place": ("StoredObject",),
    "objects.pointer": ("Entry",),
    "objects.probe": ("ProbeReport",),
    "objects.staging": ("Staging", "Writer"),
    "objects.staging_async": ("AsyncStaging", "AsyncWriter"),
    "objects.upload": ("Upload",),
    "objects.publication": ("Publication",),
    "objects.publication_async": ("AsyncPublication",),
    "objects.reading": ("PublicationDiff",),
    "objects.stream": ("Stream",),
    "objects.stream_async": ("AsyncStream",),
    "psycopg.guard": ("PsycopgGuard",),
    "psycopg.guard_async": ("AsyncPsycopgGuard",),
    "redis.guard": ("RedisGuard", "RedisTransaction"),
    "redis.guard_async": ("AsyncRedisGuard", "AsyncRedisTransaction"),
    "sql.verify": ("Finding", "VerifyReport"),
    "sqlalchemy.guard": ("SQLAlchemyGuard",),
    "sqlalchemy.guard_async": ("AsyncSQLAlchemyGuard",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
_NEEDED_BY = {
    "redis": "redis",
    "http.fenced": "httpx2",
    "http.guard": "httpx2",
    "http.guard_async": "httpx2",
    "objects": "obstore",
    "objects.filesystem": "fsspec",
    "psycopg": "psycopg",
    "sqlalchemy": "sqlalchemy",
}
_LEAST_SQLALCHEMY = 2
_OF_LOCKS = ("Fence", "Mark", "OutcomeUnknown", "StaleFence", "UnclaimedFence", "hold_all")


def __getattr__(name: str) -> Any:
    if name == "__all__":  # of import *: what can be loaded
        return [each for each in sorted(_MODULE_OF) if _is_installed(_MODULE_OF[each])]
    if name.endswith(("Coordinator", "Lock", "Lease")) or name in _OF_LOCKS:  # `from … import` replaces AttributeErrors
        raise ImportError(f"{name} is in another package: from fencing import {name}", name=__name__)
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{_MODULE_OF[name]}")
    except ModuleNotFoundError as error:
        from fencing.kernel.extras import raise_missing

        raise_missing(name, error)
    except ImportError as error:
        needed = _needed_by(_MODULE_OF[name])
        if needed != "sqlalchemy" or _major_version(needed) >= _LEAST_SQLALCHEMY:
            raise
        installed = importlib.metadata.version(needed)
        raise ImportError(f"{name} needs SQLAlchemy 2.0 or later; {installed} is installed", name=needed) from error
    value = getattr(module, name)
    globals()[name] = value
    return value


def _major_version(package: str) -> int:
    return int(importlib.metadata.version(package).partition(".")[0])


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})


def _needed_by(module: str) -> str:
    """Return the package that a module, or all of its folder, needs; "" if none."""
    return _NEEDED_BY.get(module) or _NEEDED_BY.get(module.partition(".")[0], "")


def _is_installed(module: str) -> bool:
    needed = {_NEEDED_BY.get(module), _NEEDED_BY.get(module.partition(".")[0])} - {None}
    return all(importlib.util.find_spec(str(package)) is not None for package in needed)
