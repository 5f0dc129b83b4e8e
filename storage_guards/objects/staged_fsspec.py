"""A filesystem of fsspec that writes into a publication in the making."""

from __future__ import annotations

import io
from typing import Any

from fsspec import AbstractFileSystem


class StagedFiles(AbstractFileSystem):  # type: ignore[misc]
    """The objects of a publication in the making, as files that can be written, listed and removed.

    A folder is there if something is in it. It has no copy and no rename, because an object keeps its key.
    """

    protocol = "fencing-staging"
    cachable = False

    def __init__(self, staging: Any) -> None:
        super().__init__()
        self._staging = staging

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode not in ("wb", "xb"):
            raise io.UnsupportedOperation(f"{path!r}: a publication in the making can only be written, not {mode!r}")
        name = _name(path)
        if mode == "wb":
            self._staging.remove(name)
        return self._staging.open(name)

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        """List what is in a folder."""
        folder = _name(path)
        inside = folder and folder + "/"
        found: dict[str, dict[str, Any]] = {}
        for name in self._staging.names:
            if name == folder:
                found[name] = {"name": name, "type": "file", "size": None}
            elif name.startswith(inside):
                first, _, rest = name[len(inside) :].partition("/")
                kind = "directory" if rest else "file"
                found[inside + first] = {"name": inside + first, "type": kind, "size": 0 if rest else None}
        if not found and folder:
            raise FileNotFoundError(path)
        return list(found.values()) if detail else list(found)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Do nothing: a folder needs none."""

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        """Do nothing: a folder needs none."""

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Leave out files, or folders with all that is in them."""
        for each in [path] if isinstance(path, str) else path:
            self._staging.remove(_name(each))

    def rm_file(self, path: str) -> None:
        """Leave out a file."""
        self._staging.remove(_name(path))

    def rmdir(self, path: str) -> None:
        """Do nothing: a folder is there if something is in it."""


def _name(path: str) -> str:
    return path.strip("/")
