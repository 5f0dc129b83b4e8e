"""An uploader process: uploads on command, and reports what happens, one JSON object a line.

Started by the director as ``python -m examples.object_upload.worker NAME``. Commands come in on stdin, reports go out
on stdout.
"""

import sys
from collections.abc import Callable, Iterator

from examples.object_upload.store import open_store
from examples.object_upload.uploads import Day, ObjectHasNewerFence, guarded, lock_only, textbook
from examples.stage.coordinators import CHOICES
from examples.stage.reports import command, report, serve
from fencing import Coordinator, FencedLock, Lease, LeaseLost, StaleFence
from storage_guards import ObjectStoreGuard


class Reports:
    """`Show`, for the director."""

    def acquired(self, lease: Lease) -> None:
        report("acquired", number=lease.fence.number)

    def slowly(self, body: bytes) -> Iterator[bytes]:
        yield body[:1]
        report("uploading")
        command()  # the rest comes when the director says so
        yield body[1:]

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

    def upload(self, how: str, resource: str, north: int, south: int) -> None:
        day, show = Day(north, south), Reports()
        guards = [self._guard] if how == "guarded" else []
        lock = FencedLock(self._locks, resource, owner=self._name, guards=guards)
        try:
            if how == "lock_only":
                lock_only(lock, self._store, day, show)
            elif how == "textbook":
                textbook(lock, self._store, day, show)
            else:
                guarded(lock, self._guard, day, show)
        except StaleFence as late:
            report("refused", reason=str(late), newest=late.mark.number if late.mark else None)
        except ObjectHasNewerFence as found:
            report("stopped", name=str(found))
        except LeaseLost as loss:  # on leaving the block, when all has been written
            report("lost", reason=str(loss))
        else:
            report("released")
        report("done")


def set_up(coordinator: str, address: str, s3: str, bucket: str, ttl: float) -> Callable[..., None]:
    return Worker(sys.argv[1], CHOICES[coordinator].open(address, ttl=ttl), s3, bucket).upload


if __name__ == "__main__":
    serve(set_up)
