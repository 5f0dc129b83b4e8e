"""The wall clock of a server, which a fault can set."""

from __future__ import annotations

from pathlib import Path

from examples.servers import find_faketime

__all__ = ["Clock"]


class Clock:
    """The clock of servers that were started with its environment.

    Args:
        folder: for its file. Users of the servers can read there.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self.set(0)

    def set(self, seconds: int) -> None:
        """Set it so many seconds before or after the real one."""
        made = self._file.with_suffix(".new")
        made.write_text(f"{seconds:+d}\n")
        made.chmod(0o644)
        made.replace(self._file)

    def environment(self) -> dict[str, str]:
        """Return variables for a server; none where there is no libfaketime."""
        library = find_faketime()
        if library is None:
            return {}
        return {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
