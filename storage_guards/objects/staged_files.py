"""The files of a publication in the making, for libraries that write into a filesystem."""

from __future__ import annotations

from typing import Any


def filesystem(self: Any) -> Any:
    """Return a filesystem of fsspec that writes into this publication, and reads nothing.

    It is for ``pyarrow.dataset.write_dataset``, ``DataFrame.to_parquet`` and others. What they remove is left out, also
    what is kept. So ``existing_data_behavior="delete_matching"`` of pyarrow replaces the partitions that it writes.

    Raises:
        ModuleNotFoundError: fsspec is not installed.
    """
    from storage_guards.objects.staged_fsspec import StagedFiles

    return StagedFiles(self)
