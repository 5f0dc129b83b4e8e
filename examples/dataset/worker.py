"""A worker process: writes the dataset on command, and reports what happens, one JSON object a line.

Started by the director as ``python -m examples.dataset.worker NAME``.
"""

import sys
from collections.abc import Callable, Iterable, Iterator

from examples.dataset.tables import guarded, latest_json
from examples.object_upload.store import open_store
from examples.stage.coordinators import CHOICES
from examples.stage.reports import command, report, serve
from fencing import Coordinator, FencedLock, Lease, LeaseLost, StaleFence
from storage_guards import ObjectStoreGuard


class Reports:
    """`Show`, for the director."""

    def acquired(self, lease: Lease) -> None:
        report("acquired", number=lease.fence.number)

    def slowly(self, months: Iterable[int]) -> Iterator[int]:
        first, *others = months
        yield first
        report("uploading")
        command()  # the rest comes when the director says so
        yield from others

    def sent(self, name: str) -> None:
        report("sent", name=name)

    def wrote(self) -> None:
        report("wrote")


class Worker:
    def __init__(self, name: str, locks: Coordinator, s3_url: str, bucket: str) -> None:
        self._name = name
        self._locks = locks
        self._store = open_store(s3_url, bucket)
        self._guard = ObjectStoreGuard(self._store)
        self._guard.verify()  # so that the first act does not wait for it

    def write(self, how: str, resource: str, day: str) -> None:
        guards = [self._guard] if how == "guarded" else []
        lock = FencedLock(self._locks, resource, owner=self._name, guards=guards)
        try:
            if how == "guarded":
                guarded(lock, self._guard, day, Reports())
            else:
                latest_json(lock, self._store, day, Reports())
        except StaleFence as late:
            report("refused", reason=str(late), newest=late.mark.number if late.mark else None)
        except LeaseLost as loss:  # on leaving the block, when all has been written
            report("lost", reason=str(loss))
        else:
            report("released")
        report("done")


def set_up(coordinator: str, address: str, s3: str, bucket: str, ttl: float) -> Callable[..., None]:
    return Worker(sys.argv[1], CHOICES[coordinator].open(address, ttl=ttl), s3, bucket).write


if __name__ == "__main__":
    serve(set_up)
