"""A file system of one megabyte, which a test can fill."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


class SmallDisk:
    """A file system of its own, until the end of the test.

    Attributes:
        folder: an empty folder in it.
    """

    def __init__(self, root: Path) -> None:
        self.folder = root / "data"
        self.folder.mkdir()
        self._filler = root / "filler"

    def fill(self) -> None:
        """Use up the space that is left."""
        with self._filler.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(os.sysconf("SC_PAGE_SIZE")))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def make_room(self) -> None:
        self._filler.unlink(missing_ok=True)


@contextmanager
def small_disk(megabytes: int) -> Iterator[SmallDisk]:
    """Mount one; skip the test where that is not allowed."""
    with TemporaryDirectory(prefix="fencing-disk-") as name:
        Path(name).chmod(0o755)  # the server runs as another user
        mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=755", "fencing", name]
        try:
            subprocess.run(mount, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no file system of its own for the test: {getattr(error, 'stderr', '') or error}")
        try:
            yield SmallDisk(Path(name))
        finally:
            subprocess.run(["umount", "--lazy", name], check=True)
