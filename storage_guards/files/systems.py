"""The file systems on which a lock of a file keeps its promise: local ones, by their type. Linux only."""

from __future__ import annotations

import ctypes
import os
import struct
import sys

from fencing.kernel.errors import GuardNotEnforceable

ALLOWED = {
    0xEF53: "ext4",
    0x58465342: "xfs",
    0x9123683E: "btrfs",
    0x01021994: "tmpfs",
    0x794C7630: "overlayfs",
}
"""The types of statfs(2) that are allowed. On each of them, flock(2) and rename(2) are the kernel's own."""

KNOWN = {0x6969: "NFS", 0x65735546: "FUSE", 0xFF534D42: "SMB", 0xFE534D42: "SMB", 0x01021997: "9p", 0x00C36400: "Ceph"}
"""Types that are refused, with their names: another machine, or another process, keeps the locks there."""


def type_of(path: str) -> int:
    """Return the type of the file system that a path is on. It is the first field of statfs(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = ctypes.create_string_buffer(256)
    if libc.statfs(os.fsencode(path), found) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), path)
    kind: int = struct.unpack_from("@L", found)[0]
    return kind & 0xFFFFFFFF


def check_file_system(path: str) -> None:
    """Refuse a folder whose locks cannot be relied on.

    Raises:
        GuardNotEnforceable: it is on no file system of the list. The text says which are.
        OSError: there is no such folder.
    """
    if not sys.platform.startswith("linux"):
        raise GuardNotEnforceable(f"files can be guarded on Linux only, not on {sys.platform}: use another guard")
    kind = type_of(path)
    if kind not in ALLOWED:
        raise GuardNotEnforceable(
            f"{path!r} is on {KNOWN.get(kind, 'an unknown file system')} (type {kind:#x}), where a lock cannot be "
            f"verified; choose a folder on a local disk: {', '.join(sorted(ALLOWED.values()))}"
        )
