"""Two ways to replace a partitioned Parquet dataset under a lock, and how each is queried. Copy the second.

`show` belongs to the demo and can be left out. It reports what has happened. `show.slowly` stands for a query whose
rows come slowly. The demo pauses a worker there, in the middle of its dataset.
"""

import io
import json
from collections.abc import Iterable
from typing import Any, Protocol

import duckdb
import pyarrow
from obstore.fsspec import FsspecStore
from obstore.store import S3Store
from pyarrow import dataset, parquet

from fencing import FencedLock, Lease
from storage_guards import FencedFileSystem, ObjectStoreGuard

MONTHS = (10, 11, 12)
ROWS = 1000


class Seen(tuple[str, ...]):
    """What a query finds: for each partition the day whose worker has written it. Nothing: the query failed."""

    __slots__ = ()

    @property
    def torn(self) -> bool:
        """Whether the partitions are from different days, or could not be read."""
        return len(set(self)) != 1 or len(self) != len(MONTHS)

    def __str__(self) -> str:
        return (", ".join(self) or "a broken file") if self.torn else f"all {self[0]}"


class Show(Protocol):
    """The demo's reports."""

    def acquired(self, lease: Lease) -> None: ...
    def slowly(self, months: Iterable[int]) -> Iterable[int]:
        """Yield the same months, with a long pause after the first."""

    def sent(self, name: str) -> None: ...
    def wrote(self) -> None: ...


def rows(day: str, month: int) -> Any:
    """Return what the query of a day finds about a month: here the day itself, and amounts."""
    return pyarrow.table({"day": [day] * ROWS, "amount": range(month, month + ROWS)})


def name_of(month: int) -> str:
    return f"month={month}/part-0.parquet"


# Act 1: a lock, a folder for each version, and latest.json, which names the current one


def latest_json(lock: FencedLock, store: S3Store, day: str, show: Show) -> None:
    with lock.hold(timeout=10) as lease:
        show.acquired(lease)
        version = latest(store, lock.resource) + 1
        for month in show.slowly(MONTHS):
            file = io.BytesIO()
            parquet.write_table(rows(day, month), file)
            store.put(f"{lock.resource}/v{version}/{name_of(month)}", file.getvalue())
            show.sent(f"month={month}")
        store.put(f"{lock.resource}/latest.json", json.dumps({"version": version}).encode())
        show.wrote()


def latest(store: S3Store, resource: str) -> int:
    return int(json.loads(bytes(store.get(f"{resource}/latest.json").bytes()))["version"])


def paths_of_latest(store: S3Store, resource: str) -> list[str]:
    folder = f"{store.config['bucket']}/{resource}/v{latest(store, resource)}"
    return [f"{folder}/{name_of(month)}" for month in MONTHS]


# Act 2: this library


def guarded(lock: FencedLock, guard: ObjectStoreGuard, day: str, show: Show) -> None:
    """The lock was made with the guard: `FencedLock(redis.Redis(), "sales", ttl=10, guards=[guard])`.
    So it claims its fence in the store first. All partitions become current at once, or none does.
    """
    with lock.hold(timeout=10) as lease:
        show.acquired(lease)
        with guard.publishing(lease) as new:
            for month in show.slowly(MONTHS):
                with new.open(name_of(month)) as file:
                    parquet.write_table(rows(day, month), file)
                show.sent(f"month={month}")
        show.wrote()


# The readers. `files` is a filesystem of fsspec: of the bucket, or of one publication.


def files_of_bucket(store: S3Store) -> Any:
    return FsspecStore("s3", config=store.config, client_options=store.client_options)


def files_of_publication(guard: ObjectStoreGuard, resource: str) -> tuple[Any, list[str]]:
    current = guard.read(resource)
    if current is None:
        raise LookupError(f"nothing is published for {resource}")
    return FencedFileSystem(current), [f"{resource}/{name}" for name in current]


def with_duckdb(files: Any, paths: list[str]) -> Seen:
    with duckdb.connect() as connection:
        connection.register_filesystem(files)
        urls = [f"{files.protocol}://{path}" for path in paths]
        found = connection.execute(
            "select month, string_agg(distinct day) from read_parquet($urls, hive_partitioning = true) "
            "group by month order by month",
            {"urls": urls},
        ).fetchall()
    return Seen(tuple(day for _, day in found))


def with_pyarrow(files: Any, paths: list[str]) -> Seen:
    found = dataset.dataset(paths, filesystem=files, partitioning="hive", format="parquet").to_table(["month", "day"])
    days = set(zip(found["month"].to_pylist(), found["day"].to_pylist(), strict=True))
    return Seen(tuple(day for _, day in sorted(days)))


READERS = {"DuckDB": with_duckdb, "pyarrow": with_pyarrow}
