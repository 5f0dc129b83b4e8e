"""The reader process: reads the dataset again and again, and reports what it sees, one JSON object a line.

Started by the director as ``python -m examples.object_upload.reader NAME``. One command starts the reading, the next
one stops it.
"""

import time
from collections.abc import Callable

from examples.object_upload.store import open_store
from examples.object_upload.uploads import read, read_published
from examples.stage.reports import command, commanded, report, serve
from storage_guards import ObjectStoreGuard

PAUSE = 0.01
"""Seconds between two reads."""


class Reader:
    def __init__(self, s3: str, bucket: str) -> None:
        self._store = open_store(s3, bucket)
        self._guard = ObjectStoreGuard(self._store)

    def watch(self, how: str, resource: str) -> None:
        while not commanded(PAUSE):
            began = time.monotonic()
            seen = read_published(self._guard, resource) if how == "guarded" else read(self._store, resource)
            report("saw", began=began, files=seen)
        command()
        report("done")


def set_up(s3: str, bucket: str) -> Callable[..., None]:
    return Reader(s3, bucket).watch


if __name__ == "__main__":
    serve(set_up)
