"""The async guard of data in Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import redis.asyncio

from fencing.kernel.admission import as_fence
from fencing.kernel.effects import Plan, run_async
from fencing.kernel.errors import OutcomeUnknown
from fencing.kernel.fence import Fence, HasFence, Mark
from storage_guards.blocks import async_block
from storage_guards.once import check_once
from storage_guards.redis.base import RedisBase
from storage_guards.redis.clients import CLUSTERS, check_client, connections_of
from storage_guards.redis.commands import Argument, Command
from storage_guards.redis.transaction import Block
from storage_guards.sending import Sending


class AsyncRedisTransaction(Block):
    """A transaction: it reads at once, and gathers writes, which are done together as its block ends.

    It is what the block of :meth:`AsyncRedisGuard.begin` gets.
    """

    __module__ = "storage_guards"

    async def read(self, *command: Argument) -> Any:
        """Run one command that reads, such as ``read("GET", key)``, and return its reply as Redis sends it.

        It does not see the block's own writes, which are done later. If anybody else writes or claims before the block
        ends, the block is refused: by the next read, or at its end.

        Raises:
            TypeError, ValueError: it is no command that reads, or a key may not be used. The text says why.
            StaleRead: another task or process wrote under the same fence meanwhile. Start over.
            StaleFence, UnclaimedFence: a newer fence was claimed, or this server lacks the claim. Acquire again.
            GuardUnavailable: no answer in time. Retry the block.
        """
        # SYNC "another task or process": another thread or process
        return await self._run(self._plan_read(command))


class AsyncRedisGuard(RedisBase):
    """A guard of data in Redis for asyncio: each mark is beside the data, checked by the script that writes.

    It does **not** protect what was read before the claim, before ``hold``. It keeps out only writers that use the
    guard. Redis replicates asynchronously: a failover may lose acknowledged writes, together with their marks. A holder
    that has seen such a write is refused afterwards. Redis has no rollback: if a command of a write fails, the ones
    before it stay done.

    It promises this of an acknowledged write: everything that the same fence read in this Redis since its claim was
    still current when the write came.

    The guard opens a few connections of its own with the client's settings. It does not use the client's pool. A Redis
    whose eviction policy may drop marks is refused. In a Cluster all keys of a write are in the resource's slot.

    Args:
        client: a ``redis.asyncio.Redis``, or a ``redis.asyncio.RedisCluster``.
        timeout: seconds: the longest wait for Redis. A lease that ends earlier shortens it.

    Raises:
        TypeError, ValueError: an argument has a wrong value. The text says which.
    """

    __module__ = "storage_guards"

    def __init__(self, client: redis.asyncio.Redis | redis.asyncio.RedisCluster, *, timeout: float = 10.0) -> None:
        check_client(client, asynchronous=True)
        self._connections = connections_of(client)
        cluster = isinstance(client, CLUSTERS)
        super().__init__(client, timeout=timeout, cluster=cluster, address=self._connections.address)

    async def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:
        """Raise the mark to each fence. A lock with ``guards=[guard]`` calls this when it is acquired.

        It protects what is read **after** it has returned. It may be repeated after an error. Several fences are
        claimed all or none. In a Cluster this holds for those of one slot; others are checked first, and then claimed
        one after the other.

        Args:
            holders: leases or fences of different resources.
            timeout: seconds to wait, at most the guard's own. None: what the leases and the guard allow.

        Raises:
            StaleFence: a newer fence was claimed. Stop.
            UnclaimedFence: Redis has lost what it had acknowledged under this fence. Acquire again.
            GuardUnavailable: no answer in time. Retry; the claim may have happened.
            GuardNotEnforceable: this Redis cannot enforce the rules. The text says what to change.
        """
        await self._run(self._plan_claim(holders, timeout))

    async def mark(self, resource: str) -> Mark | None:
        """Return the newest fence claimed for ``resource``, or None. It is for people and tests: do not base a write on
        it.

        Raises:
            GuardUnavailable: no answer in time. Retry.
            GuardNotEnforceable: it is damaged, or a newer version of the library writes it. The text says what to do.
        """
        return await self._run(self._plan_mark(resource))  # type: ignore[no-any-return]

    async def write(
        self, holder: Fence | HasFence, *commands: Command, claim: bool = False, once: str | None = None
    ) -> list[Any]:
        """Check the fence and run the commands, in one script: ``write(lease, ("SET", key, value), ("INCR", other))``.

        Nothing else runs between them. They are **not** undone if a later one fails. To decide before the first write,
        use :meth:`script`.

        Args:
            holder: a lease or a fence.
            commands: tuples of a command's name and its arguments. Each one writes, and its keys are known to the
                guard: others are refused, before anything is sent.
            claim: claim first. It is right only if nothing was read before.
            once: a key of what this does, such as ``"2026-11-23"``: at most one write of this resource with this key is
                accepted. It needs exactly one lease. The last 1000 keys are kept (docs/guards/once.md). 255 bytes of
                UTF-8 at most.

        Returns:
            The reply to each command, as Redis sends it. With ``decode_responses``, what is no text stays bytes.

        Raises:
            TypeError, ValueError: a command or a key is refused; nothing was written. The text says why.
            StaleFence: a newer fence was claimed. Stop.
            UnclaimedFence: this fence was not claimed here, or Redis has lost the claim. Acquire again.
            AlreadyDone: a write with this ``once`` was accepted before. Go on without it.
            TooOld: this ``once`` is not above the lowest of the 1000 that are kept. Read the data, and decide.
            OutcomeUnknown: the reply was lost. Ask :meth:`landed`.
            StaleRead: an earlier write of this guard, whose reply was lost, has happened meanwhile. Read again.
            redis.exceptions.ResponseError: a command failed, such as one on a key of another type. The text says which;
                the commands before it stay done.
            GuardUnavailable: Redis did not answer; nothing was written. Retry.
            GuardNotEnforceable: this Redis cannot enforce the rules. The text says what to change.
        """
        if not commands:
            raise TypeError("write needs at least one command, such as ('SET', key, value)")
        if once is not None:
            check_once(once, (holder,))
        request = self._request_of([as_fence(holder)], commands, once)
        sending = Sending()
        return await self._send(self._plan_write([holder], request, claim, sending), sending)  # type: ignore[no-any-return]

    async def script(
        self,
        holder: Fence | HasFence,
        lua: str,
        *,
        keys: Sequence[str | bytes] = (),
        args: Sequence[Argument] = (),
        claim: bool = False,
        once: str | None = None,
    ) -> Any:
        """Check the fence and run Lua of your own behind the check, in one script.

        It does **not** undo what the Lua did before it failed: check first, then write. Redis keeps the text of each
        script, so pass data as ``args``.

        Args:
            holder: a lease or a fence.
            lua: what an EVAL would get. It has its own KEYS and ARGV, and its return value is returned.
            keys: all keys that it uses. In a Cluster they are in the resource's slot.
            args: its arguments.
            claim: claim first. It is right only if nothing was read before.
            once: as for :meth:`write`.

        Returns:
            What the Lua returned, as Redis sends it.

        Raises:
            ValueError: the Lua does not compile, or a key is refused; nothing was written.
            redis.exceptions.ResponseError: the Lua failed; what it did before stays done.
            StaleFence, UnclaimedFence, AlreadyDone, TooOld, OutcomeUnknown, GuardUnavailable, GuardNotEnforceable: as
                :meth:`write`.
        """
        if once is not None:
            check_once(once, (holder,))
        request = self._script_request(as_fence(holder), lua, keys, args, once)
        sending = Sending()
        return await self._send(self._plan_write([holder], request, claim, sending), sending)

    @async_block
    async def begin(
        self, *holders: Fence | HasFence, claim: bool = False, once: str | None = None
    ) -> AsyncIterator[AsyncRedisTransaction]:
        """Run one transaction: it reads at once, and its writes are done together, as the block ends.

        The fences are checked before the block, and again by the script that writes. That script is refused if anyone
        else has claimed or written since the block began. An exception of the block writes nothing. No lock is held
        during the block.

        Args:
            holders: leases or fences of all resources that the block writes. In a Cluster they are of one slot.
            claim: claim first. It is right only if nothing was read outside the block.
            once: as for :meth:`write`. It is looked for before the block, and again as the block ends.

        Returns:
            An async context manager; its value has ``read(...)`` and ``write(...)``.

        Raises:
            StaleRead: another task or process wrote under the same fence meanwhile; nothing was written. Start over.
            StaleFence, UnclaimedFence, AlreadyDone, TooOld, OutcomeUnknown, ResponseError, GuardUnavailable,
                GuardNotEnforceable: as :meth:`write`.
        """
        # SYNC "another task or process": another thread or process
        newest, sending = await self._run(self._plan_begin(holders, claim, once)), Sending()
        block = AsyncRedisTransaction(self, newest)
        try:
            try:
                yield block
            finally:
                block.end()
            request = self._request_of(block.fences, block.commands, once)
            await self._run(self._plan_commit(holders, newest, request, sending))
        except BaseException as error:  # noqa: BLE001 - raised again, with its meaning
            raise sending.explain(error)  # noqa: B904 - it sets the cause

    async def landed(self, error: OutcomeUnknown, timeout: float | None = None) -> bool | None:
        """Return whether a write whose reply was lost has happened. False also means that it never will.

        True says that the write was accepted, not that each of its commands succeeded.

        Args:
            error: the error of :meth:`write`, :meth:`script` or :meth:`begin`.
            timeout: seconds to wait, at most the guard's own.

        Returns:
            None: it can no longer be known. 16 later writes came, or the mark was lost, or another Redis answers, such
            as a former primary. Read the data under a lease.

        Raises:
            TypeError: ``error`` is no OutcomeUnknown. Pass the error that a write raised.
            GuardUnavailable: no answer in time. Retry.
            GuardNotEnforceable: a newer version of the library writes this mark. Upgrade.
        """
        return await self._run(self._plan_landed(error, timeout))  # type: ignore[no-any-return]

    async def _run(self, plan: Plan[Any]) -> Any:
        return await run_async(plan, self._connections.perform)

    async def _send(self, plan: Plan[Any], sending: Sending) -> Any:
        try:
            return await self._run(plan)
        except BaseException as error:  # noqa: BLE001 - raised again, with its meaning
            raise sending.explain(error)  # noqa: B904 - it sets the cause
