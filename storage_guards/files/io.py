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
import stat
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain, repeat, starmap
from operator import length_hint
from pathlib import Path

from fencing.kernel.errors import GuardNotEnforceable, GuardUnavailable
from fencing.kernel.fence import Fence
from fencing.kernel.interruptions import raise_interruption
from fencing.kernel.process import after_fork
from storage_guards.files.content import Content, decode
from storage_guards.sending import Sending

try:
    import fcntl
except ImportError:  # on Windows, where no folder is accepted
    fcntl = None  # type: ignore[assignment]

CURRENT, NEW, PREFIX = "current", "new", "folder-"
CHUNK = 2**16
_ONE_CALL = ((),)
_NOTHING: Iterator[None] = iter(())

_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_FOREIGN = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.EXDEV)

Body = bytes | Path


class Opened:
    """An open file or folder, which the collector closes if an interruption has lost it.

    A signal handler may raise after any call. Here, opening and remembering are one call of C, and so are forgetting,
    unlocking and closing. So no descriptor is lost with its lock, and none is closed twice.

    A lock belongs to all copies of a descriptor. So it is unlocked before the closing: a copy may live in a forked
    child. The child closes its copies, too, because the parent may be killed before it unlocks.

    Args:
        path: what is opened.
        flags: as for open(2).
        folder: the descriptor of the folder that ``path`` is in, also if another one has its name meanwhile.
        unlocking: unlocks it, if it is locked.

    Attributes:
        fd: the descriptor.
        close: unlocks and closes it, if it is open. One call of C: no signal handler runs before its end.
    """

    close: Callable[[], object] = staticmethod(tuple)  # nothing: the making was interrupted at once

    def __init__(
        self, path: str | Path, flags: int, folder: int | None = None, unlocking: Iterator[None] = _NOTHING
    ) -> None:
        self._fds: list[int] = []
        self.close = partial(deque, chain(unlocking, map(os.close, iter(self._fds))), 0)
        _all_opened.add(weakref.ref(self, _all_opened.discard))
        self._fds.extend(starmap(partial(os.open, path, flags, 0o666, dir_fd=folder), _ONE_CALL))
        self.fd = self._fds[0]

    @property
    def is_opening(self) -> bool:
        """Whether another thread was just opening it when this process was forked. Then its descriptor is unknown."""
        return not self._fds

    def close_copy(self) -> None:
        """Close a forked child's copy."""
        self.close()

    def __del__(self) -> None:
        self.close()


_all_opened: set[weakref.ref[Opened]] = set()


def _close_in_child() -> None:
    unknown = set()
    for alive in list(_all_opened):
        opened = alive()
        if opened is None:
            continue
        if opened.is_opening and isinstance(opened, Place):
            unknown.add(opened.path)
        opened.close_copy()
    for fd in os.listdir("/proc/self/fd") if unknown else ():
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}") in unknown:
                os.close(int(fd))


after_fork(_close_in_child)


class Place(Opened):
    """The folder of one resource, opened, to lock it and to fsync it. It is no link.

    Attributes:
        path: its whole path.
    """

    def __init__(self, path: str, within: Place | None = None) -> None:
        self.path = path
        self._locked: list[int] = []
        self._to_unlock = iter(self._locked)
        name, folder = (path, None) if within is None else (os.path.basename(path), within.fd)
        unlocking = map(fcntl.flock, self._to_unlock, repeat(fcntl.LOCK_UN))
        super().__init__(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, folder, unlocking)

    is_left = False

    def is_over(self) -> bool:
        """Return whether it is not locked: not yet, or not any more."""
        return length_hint(self._to_unlock) == 0

    def close_copy(self) -> None:
        """Close a forked child's copy. The parent keeps the lock, which an unlocking here would end."""
        deque(self._to_unlock, 0)
        self.close()

    def leave_to_parent(self) -> None:
        """Close this child process's copy."""
        self.close_copy()

    def check_current(self) -> None:
        """Raise OSError if the folder has lost its name: what is in it is not found any more."""
        if not self.is_current():
            raise OSError(errno.ESTALE, "the folder was replaced meanwhile, as by a restore", self.path)

    def try_lock(self) -> bool:
        """Lock the folder if it is free. Never waits."""
        if not self._locked:
            self._locked.append(self.fd)  # first: an interruption must not lose it
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False

    def is_current(self) -> bool:
        """Return whether the folder still has its name: it may have been removed, and made again."""
        try:
            return os.path.samestat(os.fstat(self.fd), os.lstat(self.path))
        except OSError:
            return False

    def check_file_system(self) -> None:
        """Raise OSError if the folder is on another file system than the guard's: that one was not checked."""
        if os.fstat(self.fd).st_dev != os.stat("..", dir_fd=self.fd).st_dev:
            raise OSError(errno.EXDEV, "the folder is on another file system than the guard's", self.path)


def path_of(folder: str, resource: str) -> str:
    """Return the path of a resource's folder: exact for every name, and never too long."""
    return f"{folder}/{hashlib.sha256(resource.encode()).hexdigest()}"


def take(path: str, fence: Fence, opened: list[Opened]) -> tuple[Place, Content | None] | str:
    """Open and lock the folder of a resource, and read its pointer file. Make the folder if there is none. Never waits.

    Args:
        path: of the folder.
        fence: the one that the pointer file probably has.
        opened: gets what was opened; whoever asks closes it.

    Returns:
        What was found instead, in words: then nothing is locked.
    """
    try:
        place = Place(path)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
        place = Place(path)
    opened.append(place)
    place.check_file_system()
    if not place.try_lock():
        opened.pop().close()
        return "stayed locked, by another process or by another block of this one"
    if not place.is_current():
        opened.pop().close()
        return "were replaced again and again"
    return place, load(path, place.fd, fence)


def load(path: str, folder: int | None = None, fence: Fence | None = None) -> Content | None:
    """Return what the pointer file has; None: there is none. It may be called without the lock: a rename is atomic.

    Args:
        path: of the resource's folder.
        folder: its descriptor, if it is locked.
        fence: the one that it probably has.
    """
    try:
        file = Opened(f"{path}/{CURRENT}" if folder is None else CURRENT, os.O_RDONLY, folder)
    except FileNotFoundError:
        return None
    try:
        parts = []
        while part := os.read(file.fd, CHUNK):
            parts.append(part)
    finally:
        file.close()  # one call of C
    return decode(b"".join(parts), f"{path}/{CURRENT}", fence)


def store(place: Place, content: Content, is_first: bool, sending: Sending) -> None:
    """Write the next pointer file, make it the current one, and wait until the disk has each of the two steps.

    Until the rename, nothing has changed for readers. Before the first pointer, the disk has the folder's own name. So
    it has that of each folder with a pointer, also if a process was killed in between.
    """
    stored = content.encode()
    try:
        write_file(NEW, stored, place.fd)
    except FileExistsError:  # a process that was killed has left it; it may be a link to another file
        os.unlink(NEW, dir_fd=place.fd)
        write_file(NEW, stored, place.fd)
    if is_first:
        fsync_path(os.path.dirname(place.path))
    sending.unknown = content.unknown()  # from here on, nobody but the disk knows the outcome
    os.replace(NEW, CURRENT, src_dir_fd=place.fd, dst_dir_fd=place.fd)
    os.fsync(place.fd)
    place.check_current()


def fsync_path(path: str) -> None:
    """Wait until the disk has the names in a folder."""
    folder = Place(path)
    try:
        os.fsync(folder.fd)
    finally:
        folder.close()  # one call of C


def write_file(name: str, body: Body, folder: int) -> None:
    """Write a new file into a folder, and wait until the disk has its bytes.

    Raises:
        FileExistsError: there is one of that name. It is left as it is.
        ValueError: the file to copy cannot be read, or was changed meanwhile.
    """
    file = Opened(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, folder)
    try:
        for part in (body,) if isinstance(body, bytes) else _parts_of(body):
            _write_all(file.fd, part)
        os.fsync(file.fd)
    finally:
        file.close()  # one call of C


def _parts_of(source: Path) -> Iterator[bytes]:
    """Read a file that the caller wants to publish: all of it, as it was at one moment."""
    copied = 0
    try:
        file = Opened(source, os.O_RDONLY | os.O_NONBLOCK)  # a pipe without a writer would block for ever
        try:
            before = os.fstat(file.fd)
            if not stat.S_ISREG(before.st_mode):
                raise OSError(errno.EINVAL, "this is no regular file", str(source))
            while part := os.read(file.fd, CHUNK):
                copied += len(part)
                yield part
            after = os.fstat(file.fd)
        finally:
            file.close()  # one call of C
    except OSError as error:
        raise_interruption(error)
        raise ValueError(
            f"a file to publish cannot be copied: {error}; nothing was written; pass the path of a file that this user "
            f"can read"
        ) from error
    if copied < before.st_size or (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise ValueError(
            f"the file {str(source)!r} was changed while it was copied: {copied} bytes came, and it had "
            f"{before.st_size}; nothing was written; publish it when nobody writes it any more"
        )


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def new_folder(place: Place, name: str, opened: list[Opened]) -> Place:
    """Make the folder of a publication, and lock it: so nobody removes it as unused while it is built.

    The resource's folder must be locked: a publication that ends removes the folders that nobody has locked.
    """
    path = f"{place.path}/{name}"
    os.mkdir(path)
    made = Place(path)
    opened.append(made)
    if not made.try_lock() or not made.is_current():
        raise OSError(errno.ESTALE, "the new folder was removed at once, as by a restore", path)
    return made


def build(made: Place, bodies: Mapping[str, Body]) -> None:
    """Write the files of a publication into its folder, and wait until the disk has them."""
    for file, body in bodies.items():
        write_file(file, body, made.fd)
    os.fsync(made.fd)


def remove_unused(place: Place, used: tuple[str, ...]) -> None:
    """Remove the folders of publications that are neither current, nor the one before, nor being built.

    What cannot be removed now is removed after a later publication.
    """
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = [name for name in os.listdir(place.fd) if name.startswith(PREFIX) and name not in used]
    for name in names:
        with contextlib.suppress(OSError):  # of one that is foreign, such as a link
            old = Place(f"{place.path}/{name}", place)
            if old.try_lock():
                shutil.rmtree(name, ignore_errors=True, dir_fd=place.fd)
            old.close()


def error_of(error: OSError, resource: str) -> GuardUnavailable | GuardNotEnforceable:
    """Return the guard's error for one of the operating system's, before anything was changed."""
    if error.errno in _FORBIDDEN:
        return GuardNotEnforceable(
            f"the guard may not use its folder: {error}; nothing was written; give this user a folder that it can write"
        )
    if error.errno in _FOREIGN:
        return GuardNotEnforceable(
            f"the guard's folder is gone, or something foreign is in it: {error}; nothing was written; remove links "
            f"and mounts from it, or restore it from its backup"
        )
    return GuardUnavailable(f"the disk refused: {error}; nothing was written; retry", resource=resource)
