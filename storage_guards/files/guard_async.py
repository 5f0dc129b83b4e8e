"""The async guard of files."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from fencing.kernel.effects import Plan, finish, run_async
from fencing.kernel.errors import OutcomeUnknown
from fencing.kernel.fence import Fence, HasFence, Mark
from storage_guards.blocks import async_block
from storage_guards.files.base import CLOSE, Do, FileBase, FileTransaction, do
from storage_guards.files.io import Body, Opened
from storage_guards.once import refuse_once
from storage_guards.sending import Sending


class AsyncFileGuard(FileBase):
    """A guard of files on a local disk for asyncio: one file of each resource, or a folder that changes as one.

    It does **not** protect what was read before the claim, before ``hold``. It keeps out only writers that use the
    guard. It works on Linux, on ext4, xfs, btrfs, tmpfs and overlayfs; NFS, FUSE and others are refused. A holder that
    is frozen inside :meth:`begin` keeps others out until it wakes or is killed: only their waits have a bound. Several
    resources are claimed one after the other: a crash in between leaves some claimed, which does no harm.

    It promises this of an acknowledged write: everything that the same fence read here since its claim was still
    current when the write came. Readers see all of the old state, or all of the new one, also after a kill at any
    moment. The disk was asked (fsync) to have it before the write was acknowledged.

    Calls that use the disk run in threads of the loop's executor. A task that is cancelled waits for the one under way.

    Args:
        folder: an existing folder of the guard's own. All guards of a resource use the same one.
        timeout: seconds: the longest wait for another process to finish with the resource. It does not bound a disk.

    Raises:
        TypeError, ValueError: an argument has a wrong value. The text says which.
        GuardNotEnforceable: there is no such folder, or it is on a file system that is not allowed.
    """

    # SYNC "Calls that use the disk ...":

    __module__ = "storage_guards"

    def __init__(self, folder: str | os.PathLike[str], *, timeout: float = 10.0) -> None:
        super().__init__(folder, timeout=timeout)

    async def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:
        """Raise the mark to each fence. A lock with ``guards=[guard]`` calls this when it is acquired.

        It protects what is read **after** it has returned. It may be repeated after an error. Of several fences all are
        checked before the first is stored.

        Args:
            holders: leases or fences of different resources.
            timeout: seconds to wait, at most the guard's own. None: what the leases and the guard allow.

        Raises:
            StaleFence: a newer fence was claimed. Stop.
            UnclaimedFence: the folder was restored, and lacks what was acknowledged under this fence. Acquire again.
            GuardUnavailable: the resource stayed locked, or the disk refused. Retry.
            GuardNotEnforceable: the folder cannot be used. The text says what to do.
        """
        await self._run(self._plan_claim(holders, timeout))

    async def mark(self, resource: str) -> Mark | None:
        """Return the newest fence claimed for ``resource``, or None. It is for people and tests: do not base a write on
        it.

        Raises:
            GuardUnavailable, GuardNotEnforceable: as :meth:`claim`.
        """
        return await self._run(self._plan_mark(resource))  # type: ignore[no-any-return]

    async def read(self, resource: str) -> bytes | None:
        """Read the current bytes of the resource. None: there are none. Anyone may read, without a fence.

        Raises:
            ValueError: it was published as a folder. Use :meth:`path`.
            GuardUnavailable, GuardNotEnforceable: as :meth:`claim`.
        """
        return await self._run(self._plan_read(resource))  # type: ignore[no-any-return]

    async def path(self, resource: str) -> Path | None:
        """Return the current folder of files. None: none was published. Anyone may read, without a fence.

        Its files never change. It is removed at the second publication after it: read it soon, or ask again.

        Raises:
            GuardUnavailable, GuardNotEnforceable: as :meth:`claim`.
        """
        return await self._run(self._plan_path(resource))  # type: ignore[no-any-return]

    async def write(self, holder: Fence | HasFence, data: bytes, *, claim: bool = False, once: None = None) -> None:
        """Replace the bytes of the holder's resource, by one rename.

        Args:
            holder: a lease or a fence.
            data: the bytes, at most 64 MiB. Publish larger ones.
            claim: claim and write at once. It is right only if the data depend on nothing read before.
            once: None. A key is refused: this guard does nothing once per key (docs/guards/once.md has those that do).

        Raises:
            TypeError, ValueError: ``data`` or ``once`` is refused.
            StaleFence: a newer fence was claimed. Stop.
            UnclaimedFence: this fence was not claimed here, or a restore has lost the claim. Acquire again.
            OutcomeUnknown: the disk refused after the rename, or the write was interrupted. Ask :meth:`landed`.
            GuardUnavailable: the resource stayed locked, or the disk refused; nothing was written. Retry.
            GuardNotEnforceable: the folder cannot be used. The text says what to do.
        """
        refuse_once(once, "a write")
        sending = Sending()
        await self._send(self._plan_write(holder, data, claim, sending), sending)

    async def publish(
        self, holder: Fence | HasFence, files: Mapping[str, Body], *, claim: bool = False, once: None = None
    ) -> Path:
        """Make a folder of files the current one, by one rename of the pointer. Readers see all of it, or nothing.

        The files are copied first, without a lock. One that is changed meanwhile is refused. An error before the rename
        changes nothing. The folder of the publication before stays for its readers; older ones are removed.

        Args:
            holder: a lease or a fence.
            files: bytes, or the path of a file to copy, by name. A name has no slash.
            claim: claim and publish at once. It is right only if the files depend on nothing read before.
            once: as of :meth:`write`.

        Returns:
            The folder. Its files never change: do not write in it.

        Raises:
            TypeError, ValueError: a name, a body or ``once`` is refused, or a file was changed while it was copied.
            StaleFence, UnclaimedFence, OutcomeUnknown, GuardUnavailable, GuardNotEnforceable: as :meth:`write`.
        """
        refuse_once(once, "a publication")
        sending = Sending()
        return await self._send(self._plan_publish(holder, files, claim, sending), sending)  # type: ignore[no-any-return]

    @async_block
    async def begin(self, holder: Fence | HasFence, *, claim: bool = False) -> AsyncIterator[FileTransaction]:
        """Run one transaction: it is checked first, and the resource stays locked until its end.

        Args:
            holder: a lease or a fence.
            claim: claim and check at once. It is right only if nothing was read outside the block.

        Returns:
            An async context manager; its value has ``data``, the current bytes. The block may assign others. They are
            stored as it ends, unless by an exception.

        Raises:
            TypeError, ValueError, StaleFence, UnclaimedFence, OutcomeUnknown, GuardUnavailable, GuardNotEnforceable: as
                :meth:`write`.
        """
        opened: list[Opened] = []
        sending = Sending()
        try:
            try:
                transaction = await self._run(self._plan_begin(holder, claim, opened))
                yield transaction
                await self._run(self._plan_end(holder, transaction, sending))
            finally:
                deque(map(CLOSE, opened), 0)  # one call of C
        except BaseException as error:  # noqa: BLE001 - raised again, with its meaning
            raise sending.explain(error)  # noqa: B904 - it sets the cause

    async def landed(self, error: OutcomeUnknown, timeout: float | None = None) -> bool | None:
        """Return whether a write whose end is unknown has happened. False also means that it never will.

        Args:
            error: the error of :meth:`write`, :meth:`publish` or :meth:`begin`.
            timeout: seconds to wait, at most the guard's own.

        Returns:
            None: it can no longer be known, because 16 later writes came or the folder was restored. Read the data
            under a lease.

        Raises:
            TypeError: ``error`` is no OutcomeUnknown. Pass the error that a write raised.
            GuardUnavailable: the resource stayed locked. Retry.
        """
        return await self._run(self._plan_landed(error, timeout))  # type: ignore[no-any-return]

    async def _run(self, plan: Plan[Any]) -> Any:
        # SYNC instead: return run(plan, do)
        return await run_async(plan, _in_thread)

    async def _send(self, plan: Plan[Any], sending: Sending) -> Any:
        try:
            return await self._run(plan)
        except BaseException as error:  # noqa: BLE001 - raised again, with its meaning
            raise sending.explain(error)  # noqa: B904 - it sets the cause


async def _in_thread(effect: Do) -> Any:  # ASYNC
    """Perform an effect in a thread, to its end, even if the task is cancelled meanwhile: nothing stays half done."""
    return await finish(asyncio.to_thread(do, effect))
