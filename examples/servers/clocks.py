"""A wall clock for servers that can be set while they run, through libfaketime."""

import platform
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from examples.servers.local import ServerError
from examples.servers.wheels import find_in_wheel


class MissingTool(ServerError):
    """Something is not installed here. The message says what, and where it is to be had."""


def find_faketime() -> Path | None:
    """Return the library that gives a process another clock, or None: that of Debian's faketime, or of the wheel."""
    installed = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
    return installed or find_faketime_in_wheel()


def find_faketime_in_wheel() -> Path | None:
    """Return the library of the package libfaketime, or None. Its wheel is for any machine, and the library for one."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return None
    return next(iter(find_in_wheel("libfaketime", "vendor/libfaketime/src/libfaketime.so.1")), None)


class FakeClock:
    """The wall clock of all servers that were started with its `environment`. A context manager."""

    def __init__(self) -> None:
        library = find_faketime()
        if library is None:
            raise MissingTool(
                "no libfaketime here: on Linux with x86-64, `make demo` installs it into .venv; other Linux has it "
                "in the package faketime; other systems cannot"
            )
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
