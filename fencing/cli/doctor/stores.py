"""An object store, or a folder, of a guard."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from typing import Any

from obstore.store import from_url

from fencing.cli.doctor.findings import SECONDS, Finding, NotExamined
from fencing.cli.guards import store_of
from fencing.kernel.errors import GuardNotEnforceable, GuardUnavailable
from fencing.locks.urls import redacted, scheme_of
from storage_guards import ObjectStoreGuard
from storage_guards.files.systems import check_file_system

LIMITS = "docs/guards/objects.md#limits"
STORES = "docs/guards/object-stores.md#compatible-stores"
PERMISSIONS = "docs/guards/object-stores.md#permissions"
FILES = "docs/guards/files.md#not-promised"
RATE = "docs/guards/object-stores.md#versions-replication-backups-throttling"

PREFIX = "fencing/"
"""Where a guard keeps what it has, unless it is made with another prefix."""


def examine(url: str, *, write_probe: bool) -> Iterator[Finding]:
    """Yield the findings about a store.

    Args:
        url: of a bucket, or ``file://`` of a folder.
        write_probe: also try out the conditions of writes, under random keys that are deleted again.

    Raises:
        NotExamined: it does not answer, or refuses us.
        ValueError: the URL is wrong.
    """
    if scheme_of(url) == "file":
        yield from _folder(url.removeprefix("file://"))
        return
    store = _bounded(url)
    try:
        seen = len(next(iter(islice(store.list(PREFIX, chunk_size=1000), 1)), []))
    except Exception as error:  # obstore's own have no common base that is public
        reason = str(error).partition("\n")[0]  # behind it are the structures of a debugger
        raise NotExamined(f"does not answer, or refuses us: {redacted(reason)[:300]}") from error
    yield Finding("ok", f"the store answers, and lists {seen} objects below {PREFIX}", page=PERMISSIONS)
    if scheme_of(url) == "gs":
        yield Finding("ok", "Google takes one write a second to an object, so to the pointer of a resource", page=RATE)
    if not write_probe:
        yield Finding(
            "unknown",
            "whether the store keeps the conditions of writes was not tried out, nor the rights to put and to delete",
            "Only a write shows it. Some stores ignore conditions, and a guard on them would protect nothing.",
            f"pass --write-probe: it writes some small objects below {PREFIX}=probe/, and deletes them",
            STORES,
        )
        return
    yield from _probed(store_of(url))


def _bounded(url: str) -> Any:
    """Return the store, repeating a request once. The guard of the probe has bounds of its own."""
    store_of(url)  # refuses what is no URL
    return from_url(
        url,
        retry_config={"max_retries": 1, "retry_timeout": timedelta(seconds=SECONDS)},
    )


def _probed(store: Any) -> Iterator[Finding]:
    try:
        report = ObjectStoreGuard(store).verify()
    except GuardNotEnforceable as error:
        yield Finding("wrong", redacted(str(error)), "Guards refuse to work there.", "use another store", STORES)
        return
    except GuardUnavailable as error:
        raise NotExamined(redacted(str(error))) from error
    yield Finding("ok", f"the store keeps the conditions of writes: {report.races} races had one winner", page=STORES)
    if report.versions_return:
        what = "equal bytes have the same version, so a write in place needs new ones each time"
        yield Finding("ok", what, page=LIMITS)


def _folder(path: str) -> Iterator[Finding]:
    if not path.startswith("/"):
        raise ValueError(f"file://{path} names no folder: three slashes begin an absolute path, as in file:///srv/data")
    try:
        check_file_system(path)
    except GuardNotEnforceable as error:
        yield Finding("wrong", str(error), "The guard of files refuses it.", "choose a folder on a local disk", FILES)
        return
    except OSError as error:
        raise NotExamined(f"there is no such folder: {error.strerror}") from error
    yield Finding("ok", "the folder is on a local file system", page=FILES)
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        yield Finding(
            "wrong",
            "this user may not read and write the folder",
            "The guard makes folders and files there.",
            "run as the owner, or change its rights",
            "docs/guards/files.md#what-is-on-the-disk",
        )
