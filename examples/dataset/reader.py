"""A reader process: queries the dataset again and again, and reports what it finds, one JSON object a line.

Started by the director as ``python -m examples.dataset.reader NAME``: ``DuckDB`` or ``pyarrow``. One command starts
the reading, the next one stops it.
"""

import sys
import time
from collections.abc import Callable

import duckdb
import pyarrow

from examples.dataset.tables import READERS, Seen, files_of_bucket, files_of_publication, paths_of_latest
from examples.object_upload.store import open_store
from examples.stage.reports import command, commanded, report, serve
from storage_guards import ObjectStoreGuard

PAUSE = 0.01
"""Seconds between two reads."""


class Reader:
    def __init__(self, name: str, s3: str, bucket: str) -> None:
        self._query = READERS[name]
        self._store = open_store(s3, bucket)
        self._guard = ObjectStoreGuard(self._store)

    def watch(self, how: str, resource: str) -> None:
        while not commanded(PAUSE):
            began = time.monotonic()
            if how == "guarded":
                seen = self._query(*files_of_publication(self._guard, resource))
            else:
                try:
                    seen = self._query(files_of_bucket(self._store), paths_of_latest(self._store, resource))
                except (OSError, duckdb.Error, pyarrow.ArrowException):  # a file was replaced while it was read
                    seen = Seen()
            report("saw", began=began, days=seen)
        command()
        report("done")


def set_up(s3: str, bucket: str) -> Callable[..., None]:
    return Reader(sys.argv[1], s3, bucket).watch


if __name__ == "__main__":
    serve(set_up)
