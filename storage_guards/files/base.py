"""The plans of both file guards. Sync and async perform the same ones; the async guard uses threads for the disk."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple

from fencing.kernel.admission import admit_write, as_fence, sorted_fences
from fencing.kernel.effects import Plan, Sleep
from fencing.kernel.errors import GuardNotEnforceable, GuardUnavailable, OutcomeUnknown
from fencing.kernel.fence import Fence, HasFence, Mark, check_resource
from fencing.kernel.interruptions import raise_interruption
from fencing.kernel.process import OfThisProcess
from fencing.kernel.retry import Backoff
from storage_guards.blocks import note_open, refuse_nested
from storage_guards.bounds import check_timeout, check_unknown, wait_seconds
from storage_guards.continuity import REMEMBERED_WRITES, Continuity, new_id
from storage_guards.files import io
from storage_guards.files.content import MOST_BYTES, Content, check_continuity, check_name, verdict
from storage_guards.files.systems import check_file_system
from storage_guards.kept import Kept, admit_claim_at
from storage_guards.sending import Sending

CLOSE = methodcaller("close")

_BACKOFF = Backoff(0.001, 0.02)

Holder = Fence | HasFence


class Do(NamedTuple):
    """The effect: call a function that uses the disk. It is no data, because nothing else could perform it."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    resource: str


def do(effect: Do) -> Any:
    """Perform an effect in this thread."""
    try:
        return effect.function(*effect.arguments)
    except OSError as error:
        raise_interruption(error)
        raise io.error_of(error, effect.resource) from error


class FileTransaction:
    """A transaction of a file guard: what its block reads, and changes.

    Attributes:
        data: the bytes that are stored, None where there are none. What the block assigns is stored as it ends.
    """

    __module__ = "storage_guards"

    def __init__(self, place: io.Place, fence: Fence, mark: Mark, found: Content | None) -> None:
        self._place, self._fence, self._mark, self._found = place, fence, mark, found
        self._before = self.data = None if found is None else found.data

    def _following(self, data: bytes | None) -> Content:
        """Return what to store, with these data."""
        before = self._found or Content(self._fence.resource, self._mark, (new_id(),))
        writes = (new_id(), *before.writes)[:REMEMBERED_WRITES]
        return replace(before, kept=self._mark, writes=writes, data=data)


def check_data(data: object) -> bytes:
    """Return ``data`` if one file may have it. Raise TypeError or ValueError otherwise."""
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"the data of a file are bytes, not {type(data).__name__}; encode them first")
    if memoryview(data).nbytes > MOST_BYTES:
        raise ValueError(f"one file has at most {MOST_BYTES} bytes, as every claim writes it again; use publish()")
    return bytes(data)


class FileBase(OfThisProcess):
    """What both file guards share."""

    begin_takes_several = False
    """A block is of one resource. So a gate enters one block for each fence."""

    def __init__(self, folder: str | os.PathLike[str], *, timeout: float) -> None:
        self._timeout = check_timeout(timeout)
        if not isinstance(folder, (str, os.PathLike)):
            raise TypeError(f"the folder is a path, not {type(folder).__name__}")
        self._folder = str(Path(folder).resolve())
        if not os.path.isdir(self._folder):
            raise GuardNotEnforceable(f"{self._folder!r} is no folder; make it first, with the data's backup")
        check_file_system(self._folder)
        self._continuity = Continuity(FileBase, self._folder)  # all guards of the folder share it

    def __repr__(self) -> str:
        return f"<{type(self).__name__} in {self._folder!r}, timeout {self._timeout:g} s>"

    def _plan_claim(self, holders: Sequence[Holder], timeout: float | None) -> Plan[None]:
        fences = sorted_fences(holders)
        deadline = time.monotonic() + wait_seconds(holders, self._timeout, timeout)
        of_fence = {as_fence(holder): holder for holder in holders}
        opened: list[io.Opened] = []
        try:
            found: dict[Fence, Content | None] = {}
            places = []
            for fence in fences:  # every guard locks in this order, so two cannot block each other
                place, found[fence] = yield from self._plan_take(fence, deadline, opened)
                places.append(place)
                check_continuity(found[fence], fence, self._continuity.last(of_fence[fence], fence))
            marks = {fence: admit_claim_at(_kept_in(found[fence]), fence) for fence in fences}
            for fence, place in zip(fences, places, strict=True):
                before = found[fence]
                if before is None or before.kept != marks[fence]:
                    base = before or Content(fence.resource, marks[fence], (new_id(),))
                    content = replace(base, kept=marks[fence])
                    yield Do(io.store, (place, content, before is None, Sending()), fence.resource)
                    before = content
                self._continuity.remember(of_fence[fence], fence, before.kept.seq, before.writes[0])
        finally:
            deque(map(CLOSE, opened), 0)  # one call of C

    def _plan_take(
        self, fence: Fence, deadline: float, opened: list[io.Opened]
    ) -> Plan[tuple[io.Place, Content | None]]:
        """Lock the folder of a resource, and read it. Whoever asks closes what is opened, also after an error."""
        refuse_nested(self, [fence])
        effect, failures = Do(io.take, (io.path_of(self._folder, fence.resource), fence, opened), fence.resource), 0
        while True:
            found = yield effect
            if not isinstance(found, str):
                return found  # type: ignore[no-any-return]
            left = deadline - time.monotonic()
            if left <= 0:
                raise GuardUnavailable(
                    f"the files of {fence.resource!r} {found}; nothing was written; retry", resource=fence.resource
                )
            failures += 1
            yield Sleep(min(_BACKOFF.pause(failures), left))

    def _plan_mark(self, resource: str) -> Plan[Mark | None]:
        return _mark_of((yield from self._plan_load(resource)))

    def _plan_load(self, resource: str) -> Plan[Content | None]:
        path = io.path_of(self._folder, check_resource(resource))
        return (yield Do(io.load, (path,), resource))  # type: ignore[no-any-return]

    def _plan_read(self, resource: str) -> Plan[bytes | None]:
        found = yield from self._plan_load(resource)
        if found is not None and found.current:
            raise ValueError(f"{resource!r} was published as a folder; use path()")
        return None if found is None else found.data

    def _plan_path(self, resource: str) -> Plan[Path | None]:
        found = yield from self._plan_load(resource)
        if found is None or not found.current:
            return None
        return Path(io.path_of(self._folder, resource), found.current)

    # Writes

    def _plan_begin(self, holder: Holder, claim: bool, opened: list[io.Opened]) -> Plan[FileTransaction]:
        """Open a transaction for a block. Other calls inside the block would wait for it: they are refused."""
        transaction = yield from self._plan_open(holder, claim, opened)
        note_open(self, [transaction._fence], transaction._place)
        return transaction

    def _plan_open(self, holder: Holder, claim: bool, opened: list[io.Opened]) -> Plan[FileTransaction]:
        """Lock, and check the fence. The lock stays until what was opened is closed."""
        fence = as_fence(holder)
        deadline = time.monotonic() + wait_seconds([holder], self._timeout)
        last = self._continuity.last(holder, fence)
        place, found = yield from self._plan_take(fence, deadline, opened)
        check_continuity(found, fence, last)
        return FileTransaction(place, fence, _admit_write(found, fence, claim), found)

    def _plan_store(
        self, holder: Holder, transaction: FileTransaction, content: Content, sending: Sending
    ) -> Plan[None]:
        """Store the content. What the disk has acknowledged is remembered."""
        arguments = transaction._place, content, transaction._found is None, sending
        yield Do(io.store, arguments, content.resource)
        self._continuity.remember(holder, transaction._fence, content.kept.seq, content.writes[0])

    def _plan_end(self, holder: Holder, transaction: FileTransaction, sending: Sending) -> Plan[None]:
        """Store what a block leaves. A restore may have replaced its folder meanwhile."""
        data = transaction.data
        content = transaction._following(data if data is transaction._before else check_data(data))
        yield Do(transaction._place.check_current, (), content.resource)
        yield from self._plan_store(holder, transaction, content, sending)

    def _plan_write(self, holder: Holder, data: object, claim: bool, sending: Sending) -> Plan[None]:
        checked = check_data(data)
        opened: list[io.Opened] = []
        try:
            transaction = yield from self._plan_open(holder, claim, opened)
            yield from self._plan_store(holder, transaction, transaction._following(checked), sending)
        finally:
            deque(map(CLOSE, opened), 0)  # one call of C

    def _plan_publish(self, holder: Holder, bodies: Mapping[str, io.Body], claim: bool, sending: Sending) -> Plan[Path]:
        fence, checked = as_fence(holder), _check_bodies(bodies)
        opened: list[io.Opened] = []
        try:
            built = yield from self._plan_folder(holder, claim, opened)
            name = os.path.basename(built.path)
            yield Do(io.build, (built, checked), fence.resource)
            transaction = yield from self._plan_open(holder, claim, opened)
            if not built.is_current():
                raise GuardUnavailable("the new folder was removed meanwhile; retry", resource=fence.resource)
            following = transaction._following(None)
            folders = (name, *following.folders)[:2]
            yield Do(os.fsync, (transaction._place.fd,), fence.resource)  # the folder's name, before the pointer
            yield from self._plan_store(holder, transaction, replace(following, folders=folders), sending)
            yield Do(io.remove_unused, (transaction._place, folders), fence.resource)
            return Path(built.path)
        finally:
            deque(map(CLOSE, opened), 0)  # one call of C

    def _plan_folder(self, holder: Holder, claim: bool, opened: list[io.Opened]) -> Plan[io.Place]:
        """Make the folder of a publication, and lock it. The resource is locked meanwhile, and the fence is checked."""
        fence, name = as_fence(holder), f"{io.PREFIX}{new_id().replace('/', '-')}"
        deadline = time.monotonic() + wait_seconds([holder], self._timeout)
        locked: list[io.Opened] = []
        try:
            place, found = yield from self._plan_take(fence, deadline, locked)
            _admit_write(found, fence, claim)  # refused before anything is copied
            return (yield Do(io.new_folder, (place, name, opened), fence.resource))  # type: ignore[no-any-return]
        finally:
            deque(map(CLOSE, locked), 0)  # one call of C

    def _plan_landed(self, error: OutcomeUnknown, timeout: float | None) -> Plan[bool | None]:
        """Find out under the lock: so the write is over. What has landed is also on the disk when this returns."""
        unknown = check_unknown(error)
        deadline = time.monotonic() + wait_seconds((), self._timeout, timeout)
        if (yield from self._plan_load(unknown.fence.resource)) is None:
            return None
        opened: list[io.Opened] = []
        try:
            place, found = yield from self._plan_take(unknown.fence, deadline, opened)
            landed = verdict(unknown, found)
            if landed:
                yield Do(os.fsync, (place.fd,), unknown.fence.resource)
            return landed
        finally:
            deque(map(CLOSE, opened), 0)  # one call of C


def _mark_of(found: Content | None) -> Mark | None:
    return None if found is None else found.mark


def _kept_in(found: Content | None) -> Kept | None:
    return None if found is None else found.kept


def _admit_write(found: Content | None, fence: Fence, claim: bool) -> Mark:
    return admit_write(admit_claim_at(_kept_in(found), fence) if claim else _mark_of(found), fence)


def _check_bodies(bodies: object) -> dict[str, io.Body]:
    if not isinstance(bodies, Mapping):
        raise TypeError(f"publish takes a mapping of names to bytes or paths, not {type(bodies).__name__}")
    if not bodies:
        raise ValueError("publish at least one file")
    checked: dict[str, io.Body] = {}
    for name, body in bodies.items():
        if not isinstance(body, (bytes, Path)):
            raise TypeError(f"{name!r:.80} must be bytes or a pathlib.Path, not {type(body).__name__}")
        checked[check_name(name)] = body
    return checked
