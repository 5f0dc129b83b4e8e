"""The calls of the operating system, and their order. The tests kill a process before each of them.

The folder of a resource has:

- ``current``: the pointer file, replaced by a rename;
- ``new``: the next pointer file, while it is written;
- ``folder-<id>``: the files of a publication. It never changes after its name is in the pointer file.

The lock is flock(2) on the folder itself: the pointer file is replaced, and a lock file could be deleted. The kernel
frees it when the process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from fencing.kernel.errors import GuardNotEnforceable, GuardUnavailable
from fencing.kernel.process import after_fork
from storage_guards.files.content import Content, decode

try:
    import fcntl
except ImportError:  # on Windows, where no folder is accepted
    fcntl = None  # type: ignore[assignment]

CURRENT, NEW, PREFIX = "current", "new", "folder-"
CHUNK = 2**20

_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR)

Body = bytes | Path


class Opened:
    """An open file or folder, which the collector closes if an interruption has lost it.

    A signal handler may raise after any call. Here, opening and remembering are one call of C, and so are forgetting
    and closing. So no descriptor is lost with its lock, and none is closed twice. A forked child closes its copy: it
    would keep the lock.

    Attributes:
        close: closes it, if it is open. One call of C: no signal handler runs between its caller and its end.
    """

    def __init__(self, path: Path, flags: int) -> None:
        self.path = path
        self._fds: list[int] = []
        self.close: Callable[[], object] = partial(deque, map(os.close, iter(self._fds)), 0)
        _all_opened.add(self)
        self._fds.extend(map(os.open, (path,), (flags,), (0o666,)))

    @property
    def fd(self) -> int:
        return self._fds[0]

    def __del__(self) -> None:
        if close := vars(self).get("close"):  # absent if the making was interrupted at once
            close()


_all_opened: weakref.WeakSet[Opened] = weakref.WeakSet()


def _close_in_child() -> None:
    for opened in list(_all_opened):
        opened.close()


after_fork(_close_in_child)


class Place(Opened):
    """The folder of one resource, opened, to lock it and to fsync it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, os.O_RDONLY | os.O_DIRECTORY)

    @property
    def inside(self) -> Path:
        """The path of this very folder, also if another one has its name meanwhile. See proc(5), /proc/self/fd."""
        return Path(f"/proc/self/fd/{self.fd}")

    def check_current(self) -> None:
        """Raise OSError if the folder has lost its name: what is in it is not found any more."""
        if not self.is_current():
            raise OSError(errno.ESTALE, "the folder was replaced meanwhile, as by a restore", str(self.path))

    def try_lock(self) -> bool:
        """Lock the folder if it is free. Never waits."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False

    def is_current(self) -> bool:
        """Return whether the folder still has its name: it may have been removed, and made again."""
        try:
            return os.path.samestat(os.fstat(self.fd), os.stat(self.path))
        except FileNotFoundError:
            return False


def path_of(folder: Path, resource: str) -> Path:
    """Return the path of a resource's folder: exact for every name, and never too long."""
    return folder / hashlib.sha256(resource.encode()).hexdigest()


def open_place(path: Path) -> Place:
    """Open the folder of a resource; make it if there is none."""
    try:
        return Place(path)
    except FileNotFoundError:
        try:
            os.mkdir(path)
        except FileExistsError:
            pass
        return Place(path)


def load(path: Path) -> Content | None:
    """Return what the pointer file has; None: there is none. It may be called without the lock: a rename is atomic."""
    try:
        file = Opened(path / CURRENT, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        parts = []
        while part := os.read(file.fd, CHUNK):
            parts.append(part)
    finally:
        file.close()  # one call of C
    return decode(b"".join(parts), path / CURRENT)


def prepare(place: Place, content: Content) -> None:
    """Write the next pointer file, and wait until the disk has it. Nothing has changed for readers."""
    place.check_current()
    write_file(place.inside / NEW, content.encode())


def replace_pointer(place: Place, *, is_first: bool) -> None:
    """Make the next pointer file the current one, and wait until the disk has the change."""
    place.check_current()
    os.replace(place.inside / NEW, place.inside / CURRENT)
    sync_folder(place, is_first=is_first)
    place.check_current()


def sync_folder(place: Place, *, is_first: bool) -> None:
    """Wait until the disk has the names in the folder; of the first pointer, also the folder's own name."""
    os.fsync(place.fd)
    if is_first:
        fsync_path(place.path.parent)


def fsync_path(path: Path) -> None:
    """Wait until the disk has the names in a folder."""
    folder = Place(path)
    try:
        os.fsync(folder.fd)
    finally:
        folder.close()  # one call of C


def write_file(path: Path, body: Body) -> None:
    """Write a file, and wait until the disk has its bytes."""
    file = Opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW)
    try:
        if isinstance(body, bytes):
            _write_all(file.fd, body)
        else:
            source = Opened(body, os.O_RDONLY)
            try:
                while part := os.read(source.fd, CHUNK):
                    _write_all(file.fd, part)
            finally:
                source.close()  # one call of C
        os.fsync(file.fd)
    finally:
        file.close()  # one call of C


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def build(path: Path, name: str, bodies: Mapping[str, Body], opened: list[Opened]) -> Place:
    """Write the files of a publication into a new folder. It stays locked, so that nobody removes it as unused."""
    os.mkdir(path / name)
    made = Place(path / name)
    opened.append(made)
    if not made.try_lock() or not made.is_current():
        raise GuardUnavailable("the new folder was removed by another publication; retry")
    for file, body in bodies.items():
        write_file(made.path / file, body)
    os.fsync(made.fd)
    return made


def remove_unused(path: Path, used: tuple[str, ...]) -> None:
    """Remove the folders of publications that are neither current, nor the one before, nor being built.

    What cannot be removed now is removed after a later publication.
    """
    with contextlib.suppress(OSError):
        for name in os.listdir(path):
            if name.startswith(PREFIX) and name not in used:
                old = Place(path / name)
                if old.try_lock():
                    shutil.rmtree(old.path, ignore_errors=True)
                old.close()


def error_of(error: OSError, resource: str) -> GuardUnavailable | GuardNotEnforceable:
    """Return the guard's error for one of the operating system's, before anything was changed."""
    if error.errno in _REFUSED:
        return GuardNotEnforceable(
            f"the guard may not use its folder: {error}; nothing was written; give this user a folder that it can write"
        )
    return GuardUnavailable(f"the disk refused: {error}; nothing was written; retry", resource=resource)
