"""A disk that a fault can fill."""

from __future__ import annotations

import errno
import subprocess
from pathlib import Path
from typing import Self

__all__ = ["Disk"]

MEGABYTES = 16


class Disk:
    """A small file system in memory, mounted on a folder while the context lasts; none where that is not allowed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ballast = folder / "ballast"
        self.is_small = False

    def __enter__(self) -> Self:
        command = ["mount", "-t", "tmpfs", "-o", f"size={MEGABYTES}m,mode=755", "tmpfs", str(self._folder)]
        try:
            self.is_small = subprocess.run(command, capture_output=True, timeout=10).returncode == 0
        except OSError:
            pass  # there is no such program
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_small:
            subprocess.run(["umount", "--lazy", str(self._folder)], check=True, capture_output=True, timeout=10)

    def fill(self) -> None:
        """Leave no byte free."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (1 << 16, 1 << 9):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def clear(self) -> None:
        self._ballast.unlink(missing_ok=True)
