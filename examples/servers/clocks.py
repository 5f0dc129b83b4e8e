"""A wall clock for servers that can be set while they run, through libfaketime."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from examples.servers.local import ServerError


class MissingTool(ServerError):
    """Something is not installed here. The message says what, and where it is to be had."""


def find_faketime() -> Path | None:
    """Return the library that gives a process another clock, or None. Debian: package faketime."""
    return next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)


class FakeClock:
    """The wall clock of all servers that were started with its `environment`. A context manager."""

    def __init__(self) -> None:
        library = find_faketime()
        if library is None:
            raise MissingTool("no libfaketime here: Debian and Ubuntu have it in the package faketime")
        self._directory = TemporaryDirectory(prefix="fencing-clock-")
        self._file = Path(self._directory.name) / "clock"
        self.environment: Mapping[str, str] = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        self.set(0)

    def set(self, offset: int) -> None:
        """Let it be so many seconds ahead of the machine's, at once."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{offset:+d}\n", encoding="ascii")
        new.rename(self._file)

    def close(self) -> None:
        """Remove its file. Servers that still use it must be stopped before."""
        self._directory.cleanup()

    def __enter__(self) -> "FakeClock":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
