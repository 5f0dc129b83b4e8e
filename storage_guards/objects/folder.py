"""The files of a folder, as the objects of a publication."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path


def files_in(folder: str | os.PathLike[str]) -> Iterator[tuple[str, Path]]:
    """Yield the names and paths of all files below a folder: names with slashes, in their order.

    Links to files are files. Links to folders are not followed, because they may be a ring.

    Raises:
        OSError: there is no such folder, or a part of it cannot be read.
        ValueError: something in it is no file and no folder.
    """
    root = Path(folder)
    for here, folders, names in os.walk(root, onerror=_raise):
        folders.sort()
        linked = [name for name in folders if os.path.islink(os.path.join(here, name))]
        if linked:
            raise ValueError(f"{os.path.join(here, linked[0])!r} is a link to a folder; publish that by itself")
        for name in sorted(names):
            path = Path(here, name)
            if not stat.S_ISREG(path.stat().st_mode):
                raise ValueError(f"{str(path)!r} is no file, so it has no bytes to publish; remove it")
            yield path.relative_to(root).as_posix(), path


def _raise(error: OSError) -> None:
    raise error
