"""The async guard for object stores through obstore: S3, Google Cloud Storage, Azure Blob Storage, and compatible
stores."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Any, TypeVar

# SYNC: from storage_guards.objects.loop import in_loop
from fencing.kernel.admission import sorted_fences
from fencing.kernel.effects import Plan, run_async
from fencing.kernel.errors import OutcomeUnknown, StaleRead
from fencing.kernel.fence import Fence, HasFence, Mark
from storage_guards.bounds import check_unknown
from storage_guards.objects.base import Progress
from storage_guards.objects.bodies import Body
from storage_guards.objects.collect import UploadFound, plan_history
from storage_guards.objects.history import OPEN_ROUNDS, At, PublicationFound, plan_publications
from storage_guards.objects.in_place import StoredObject
from storage_guards.objects.plans import ANYTHING, Anything
from storage_guards.objects.probe import ProbeReport
from storage_guards.objects.publication_async import AsyncPublication
from storage_guards.objects.requests import Close, Next, OpenBody, Progressed
from storage_guards.objects.shared_probe import AsyncProbedOnce
from storage_guards.objects.stream_async import AsyncStream
from storage_guards.sending import Sending

T = TypeVar("T")


class AsyncObjectStoreGuard(AsyncProbedOnce):
    """An async guard that keeps a small pointer object for each resource: its mark, and which immutable objects are
    current.

    It does **not** protect what was read before the claim, before ``hold``. It keeps out only writers that use the
    guard: a write or a deletion below ``prefix`` without it, by a lifecycle rule too, breaks the promise. It does not
    cover caches and replicas. Several resources are claimed one after the other: if a later one is refused, the earlier
    ones stay claimed, which does no harm.

    It promises this of an acknowledged publication: everything that the same fence read of its resource's publications
    since its claim was still current when the publication came. Readers see all of a publication or nothing.

    At its first write a guard tries the store out (see :meth:`verify`), and refuses a store that does not keep
    conditions. Each request ends at the guard's own bounds, whatever the store's ``retry_config`` would allow.

    Args:
        store: an obstore store, such as ``obstore.store.S3Store("bucket")``.
        prefix: the directory of everything the guard keeps; the same for all guards of a resource.
        timeout: seconds: the longest time for reading or changing what is current. A lease that ends earlier shortens
            it.
        upload_timeout: seconds: the longest time without progress in a transfer of data.

    Raises:
        TypeError, ValueError: an argument is malformed. The text says which.
    """

    __module__ = "storage_guards"

    _asynchronous = True

    async def verify(self, *, timeout: float | None = None) -> ProbeReport:
        """Try out whether the store keeps the conditions of writes. A guard does so by itself at its first write.

        It writes random keys below ``prefix`` and deletes them again. The result is kept: a second call asks nothing.

        Args:
            timeout: seconds, at most the guard's own. None: the guard's own.

        Returns:
            What the probe found.

        Raises:
            GuardNotEnforceable: the store does not keep them, or refuses the guard. The text says what to change.
            GuardUnavailable: the store did not answer. Retry.
        """
        return await self._verified(self._deadline(timeout).seconds)

    async def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:
        """Raise the mark to each fence. A lock with ``guards=[guard]`` calls this when it is acquired.

        It protects what is read **after** it has returned. It may be repeated after an error. Of several fences all are
        checked first; across resources it is not atomic.

        Args:
            holders: leases or fences of different resources.
            timeout: seconds to wait for the store, at most the guard's own. None: what the leases and the guard allow.

        Raises:
            StaleFence: a newer fence was claimed. Stop.
            UnclaimedFence: the store was restored, and lacks what was acknowledged under this fence. Acquire again.
            GuardUnavailable: the store did not answer. Retry; the claim may have happened.
            GuardNotEnforceable: the store cannot enforce the rules. The text says what to do.
        """
        fences, deadline = sorted_fences(holders), self._deadline(timeout, holders)
        await self._verified(deadline.part())
        await self._run(self._plan_claim(fences, deadline, holders))

    async def mark(self, resource: str) -> Mark | None:
        """Return the newest fence claimed for ``resource``, or None. It is for people and tests: do not base a write on
        it.

        Raises:
            GuardUnavailable: the store did not answer. Retry.
            GuardNotEnforceable: the pointer has a format that this version does not understand, or the store refuses.
                The text says what to do.
        """
        return await self._run(self._plan_mark(self._scope(resource)))

    async def publish(
        self,
        holder: Fence | HasFence,
        objects: Mapping[str, Any],
        *,
        claim: bool = False,
        replacing: AsyncPublication | Anything | None = ANYTHING,
        progress: Progress | None = None,
        once: str | None = None,
    ) -> AsyncPublication:
        """Make ``objects``, and nothing else, the current publication of the holder's resource, all at once.

        It does **not** replace what is current until the last body is uploaded. An error before that publishes nothing,
        also an error of a body or of ``progress``. What was uploaded by then stays in the store until :meth:`collect`.
        With ``claim=True`` it is a **blind** write: right only if it depends on nothing read before. Tasks that share a
        fence replace each other's publications; ``replacing`` excludes that.

        On cancellation the one put that counts is first completed, within the guard's bound. Then the ``__cause__`` of
        the ``CancelledError`` is an ``OutcomeUnknown`` for :meth:`landed`, or the refusal. With no cause, the put was
        not sent, and never will be.

        Args:
            holder: a lease or a fence.
            objects: bodies by name, at least one. A name is any text up to 1,024 bytes that does not begin with
                ``!escaped/``. It is the end of its key where it can be, so partitions keep their names. A body is
                bytes, a path, a binary file, or a sync or async iterable of bytes. It may also be an entry of
                the current publication, which is carried over without a copy. Bodies are read in order, with bounded
                memory: files in a thread, a sync iterable in this task, so it should not block. Up to 16 are uploaded
                at the same time. After an error a seekable file is put back; an iterator that was read is refused.
            claim: claim and publish at once.
            replacing: an :class:`AsyncPublication`, or None for none: refused unless exactly this is still current.
            progress: called in this task as ``progress(name, sent, total)``, with the bytes that were handed over for
                upload; ``total`` is None where it is not known.
            once: a key of what this does, such as ``"2026-11-23"``: at most one publication of this resource with this
                key ever becomes current. The last 100 keys are kept (docs/guards/once.md). 255 bytes of UTF-8 at most.

        Returns:
            The new publication.

        Raises:
            TypeError, ValueError: a name or a body is malformed, there are too many, or a body was read before. The
                text says which.
            StaleFence: a newer fence was claimed. Stop.
            UnclaimedFence: this fence was not claimed here. Pass ``guards=[guard]`` to the lock, or claim first.
            StaleRead: what it should replace, or an entry's data, is no longer current. Read again.
            AlreadyDone: a publication with this ``once`` was made before. Go on without it.
            TooOld: this ``once`` is not above the lowest of the 100 that are kept. Read the data, and decide.
            OutcomeUnknown: the reply to the change of the pointer was lost. Ask :meth:`landed`.
            GuardUnavailable: the store did not answer; nothing is published. Retry.
            GuardNotEnforceable: the store cannot enforce the rules. The text says what to do.
        """
        # SYNC "On cancellation ...":
        # SYNC "Tasks that share": Threads that share
        # SYNC "a sync or async iterable of bytes": an iterable of bytes
        # SYNC "read in order, with bounded memory: ... should not block.": read in this thread, in order, with bounded
        #     memory.
        # SYNC "in this task as": in this thread as
        sending = Sending()
        scope, plan = self._plan_publish(holder, objects, claim, replacing, sending, once)
        await self._verified(scope.seconds)
        try:
            published = await self._run(plan, progress)
            return AsyncPublication(scope.resource, published, self)
        except BaseException as error:  # noqa: BLE001 - raised again, with its meaning
            raise sending.explain(error)  # noqa: B904 - it sets the cause

    async def read(self, resource: str, *, at: At | None = None) -> AsyncPublication | None:
        """Read what is current, or was. None: nothing was published then, or it was deleted. Anyone may read, without a
        fence.

        A holder reads after its claim. Compare the result with ``is None``. Of an earlier publication it does **not**
        promise that its data stay: :meth:`collect` may delete them, and then its reader gets a :class:`StaleRead`.

        Args:
            resource: the name of the lock.
            at: the id of a publication that :meth:`publications` lists. Or the number of a fence: the last that it
                published. Or a datetime: what was current then, by the publishers' clocks. None: now.

        Raises:
            TypeError, ValueError: ``at`` is malformed. The text says how.
            KeyError: that publication is not kept, or never was. Choose one that :meth:`publications` lists.
            StaleRead: it was collected meanwhile. Retry.
            GuardUnavailable: the store did not answer. Retry.
            GuardNotEnforceable: the pointer or the manifest has a format that this version does not understand, or the
                store refuses. The text says what to do.
        """
        found = await self._run(self._plan_publication(self._scope(resource), at))
        return None if found is None else AsyncPublication(resource, found, self)

    async def publications(self, resource: str) -> list[PublicationFound]:
        """List the publications that can be read: the current one, and the last 32 that were, without what was
        collected.

        It does **not** read their objects: pass an ``id`` to :meth:`read`.

        Returns:
            The publications, the newest first.

        Raises:
            GuardUnavailable, GuardNotEnforceable: as :meth:`read`.
        """
        return await self._run(plan_publications(self._scope(resource)))

    async def restore(
        self,
        holder: Fence | HasFence,
        publication: AsyncPublication,
        *,
        replacing: AsyncPublication | Anything | None = ANYTHING,
    ) -> AsyncPublication:
        """Make all objects of an earlier publication current again, without a copy of their bytes.

        It is a publication of its own, with an id of its own, and promises what :meth:`publish` does. What it replaces
        is kept as an earlier publication.

        On cancellation the one put that counts is first completed, within the guard's bound. Then the ``__cause__`` of
        the ``CancelledError`` is an ``OutcomeUnknown`` for :meth:`landed`, or the refusal. With no cause, the put was
        not sent, and never will be.

        Args:
            holder: a lease or a fence, claimed here.
            publication: what :meth:`read` gave, with ``at``.
            replacing: what must be current, as for :meth:`publish`.

        Returns:
            The new publication.

        Raises:
            TypeError, ValueError: an argument is malformed. The text says how.
            StaleRead: its data may be deleted by now, or something else than ``replacing`` is current. Read again.
            StaleFence, UnclaimedFence, OutcomeUnknown, GuardUnavailable, GuardNotEnforceable: as :meth:`publish`.
        """
        # SYNC "On cancellation ...":
        sending = Sending()
        scope, plan = self._plan_restore(holder, publication, replacing, sending)
        await self._verified(scope.seconds)
        try:
            published = await self._run(plan)
            return AsyncPublication(scope.resource, published, self)
        except BaseException as error:  # noqa: BLE001 - raised again, with its meaning
            raise sending.explain(error)  # noqa: B904 - it sets the cause

    async def open(self, resource: str, name: str) -> AsyncStream:
        """Open the bytes of one current object, and begin to read all of it. For several that belong together,
        :meth:`read` first.

        Raises:
            KeyError: nothing of that name is current. Read again later.
            StaleRead: it was replaced and collected again and again meanwhile. Retry.
            GuardUnavailable, GuardNotEnforceable: as :meth:`read`.
        """
        for _ in range(OPEN_ROUNDS):
            current = await self.read(resource)
            if current is None:
                raise KeyError(f"nothing is published for {resource!r}, so it has no {name!r}; publish it first")
            stream = await current.open(name)
            try:
                await self._run(stream._reading.plan_begin())
                return stream
            except StaleRead as error:
                stale = error
        raise stale

    async def delete(self, holder: Fence | HasFence, *, claim: bool = False) -> None:
        """Make nothing current. The mark stays, and so do the data, until :meth:`collect`.

        On cancellation the one put that counts is first completed, within the guard's bound. Then the ``__cause__`` of
        the ``CancelledError`` is an ``OutcomeUnknown`` for :meth:`landed`, or the refusal. With no cause, the put was
        not sent, and never will be.

        Args:
            holder: a lease or a fence.
            claim: claim and delete at once.

        Raises:
            StaleFence, UnclaimedFence, OutcomeUnknown, GuardUnavailable, GuardNotEnforceable: as :meth:`publish`.
        """
        # SYNC "On cancellation ...":
        sending = Sending()
        plan = self._plan_delete(holder, claim, sending)
        await self._verified(self._timeout)
        try:
            await self._run(plan)
        except BaseException as error:  # noqa: BLE001 - raised again, with its meaning
            raise sending.explain(error)  # noqa: B904 - it sets the cause

    async def history(self, resource: str) -> list[UploadFound]:
        """List the uploads in the store, oldest fence first, also abandoned ones: of the first 100,000 objects.

        Raises:
            GuardUnavailable, GuardNotEnforceable: as :meth:`read`.
        """
        return await self._run(plan_history(self._scope(resource), self._upload_timeout))

    async def collect(
        self, holder: Fence | HasFence, *, keep: int = 0, older_than: float | None = None, dry_run: bool = False
    ) -> list[UploadFound]:
        """Delete data of **older** fences that neither the current publication nor a kept one has: garbage collection,
        which is a write.

        It does **not** spare readers of a publication that it does not keep: they get a :class:`StaleRead`, and never
        wrong bytes. Such a publication cannot be read or restored any more. Uploads of the holder's own fence stay
        until a newer fence collects.

        Args:
            holder: a lease or a fence, claimed here.
            keep: how many of the newest earlier publications to keep whole, at most 32.
            older_than: seconds. A publication that was replaced or deleted later is kept whole too, if it is one of the
                last 32, and so are younger uploads. So a reader has that much time. It compares the clocks of the
                publishers and of the store with this process's.
            dry_run: change nothing, and return what would be deleted.

        Returns:
            The uploads, or the parts of them, that were deleted. It inspects 100,000 objects at a time, oldest fences
            first, until some are to be deleted; call again until there is none.

        Raises:
            StaleFence, UnclaimedFence: as :meth:`publish`.
            GuardUnavailable: the store did not answer; some data may be deleted. Call again.
            GuardNotEnforceable: the manifest of a publication to keep cannot be read, and nothing was deleted; or the
                store refuses. The text says what to do.
        """
        plan = self._plan_collect(holder, keep, older_than, dry_run)
        await self._verified(self._timeout)
        return await self._run(plan)

    async def write(
        self,
        holder: Fence | HasFence,
        key: str,
        body: Any,
        *,
        replacing: StoredObject | Anything | None = ANYTHING,
        claim: bool = False,
    ) -> StoredObject:
        """Write one object in place, under a key of your own: for readers that want one fixed name.

        It promises **less** than :meth:`publish`. On S3 a version is a hash of the bytes. Where bytes come back, an old
        read passes for current, and a late put of an older holder replaces what was acknowledged. So write bytes there
        that are new each time. Bytes that the object has, or had at one of its last 16 writes, are refused there.

        The check of the mark and the write are two requests. So a write that has passed its check may still land after
        a newer claim, until the newer holder has itself written the object. Without ``replacing`` it therefore protects
        only bodies that depend on nothing read before. With ``replacing`` no update is lost, but for bytes that come
        back on S3. Nothing is atomic over several objects. Deleting the object deletes its mark. Other metadata are not
        kept, a content type included. Where that matters, publish. A key belongs to one resource: the numbers of two
        resources cannot be compared.

        On cancellation the one put that counts is first completed, within the guard's bound. Then the ``__cause__`` of
        the ``CancelledError`` is an ``OutcomeUnknown`` for :meth:`landed`, or the refusal. With no cause, the put was
        not sent, and never will be.

        Args:
            holder: a lease or a fence.
            key: of the object in the store, not below the guard's prefix.
            body: bytes, at most 8 MiB.
            replacing: the result of :meth:`get` or of the last ``write``: refused unless that is still there. None:
                create the object; refused where it exists.
            claim: claim first.

        Returns:
            The object as stored, for the next ``write`` to replace.

        Raises:
            TypeError, ValueError: the key or the body is malformed, or too long. The text says how.
            StaleFence: a newer fence was claimed, or has written the object. Stop.
            StaleRead: the object is not what ``replacing`` says, or what was acknowledged here. Read again.
            GuardNotEnforceable: the bytes come back, on a store where that is an old version; or as :meth:`publish`.
            UnclaimedFence, OutcomeUnknown, GuardUnavailable: as :meth:`publish`.
        """
        # SYNC "On cancellation ...":
        sending = Sending()
        plan = self._plan_write(holder, key, body, replacing, claim, sending)
        await self._verified(self._timeout)
        try:
            return await self._run(plan)
        except BaseException as error:  # noqa: BLE001 - raised again, with its meaning
            raise sending.explain(error)  # noqa: B904 - it sets the cause

    async def get(self, key: str) -> StoredObject | None:
        """Read an object that is written in place. None: there is no such object.

        Raises:
            TypeError, ValueError: ``key`` is malformed, or the object has more than 8 MiB. Read a big object with
                obstore itself.
            GuardUnavailable, GuardNotEnforceable: as :meth:`read`.
        """
        return await self._run(self._plan_get(key))

    async def landed(self, error: OutcomeUnknown, timeout: float | None = None) -> bool | None:
        """Find out whether a write with an unknown outcome happened, at this guard's store.

        It does **not** say whether the write still stands: others may have written since. True and False are never
        wrong. If a publication may still be under way, the guard first changes the pointer, so that it never lands.
        The change is the next seq, or a claim where the publication would have claimed. Ask soon, because a pointer
        remembers its last 16 writes. Another process may ask too; the error can be pickled.

        Args:
            error: the error of :meth:`publish`, :meth:`delete` or :meth:`write`. After a cancellation, the
                ``__cause__`` of that.
            timeout: seconds, at most the guard's own. None: the guard's own.

        Returns:
            True: it happened. False: it did not, and never will; it may be written again, under a lease that still
            holds. None: it cannot be known here any more (often, for a write in place); read under a lease.

        Raises:
            TypeError: ``error`` is no OutcomeUnknown. Pass the one that the write raised.
            GuardUnavailable: the store did not answer. Ask again.
            GuardNotEnforceable: the store cannot enforce the rules. The text says what to do.
        """
        # SYNC "After a cancellation": After Ctrl-C
        unknown, deadline = check_unknown(error), self._deadline(timeout)
        return await self._run(self._plan_landed(unknown, deadline, await self._verified(deadline.part())))

    async def _run(self, plan: Plan[T], progress: Progress | None = None) -> T:
        return await run_async(plan, self._perform if progress is None else partial(self._perform, progress=progress))

    async def _perform(self, request: Any, progress: Progress | None = None) -> Any:
        match request:
            case OpenBody(Body() as body):
                return body.pieces_async(), body.size
            case Next(AsyncGenerator() as body):
                return await anext(body, None)
            case Close(AsyncGenerator() as body):
                return await body.aclose()
            case Progressed(name, sent, total):
                return None if progress is None else progress(name, sent, total)
            case _:
                # SYNC instead: return in_loop(self._io.perform(request), request.seconds)
                return await self._io.perform(request)
