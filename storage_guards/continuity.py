"""The rule of continuity: a storage must still have the writes that it has acknowledged to a living holder.

A restore, or the promotion of a lagging replica, can bring back marks and data together. Then the mark may still be the
holder's own, but what the holder has read or written since is gone. So a guard remembers the last acknowledged state of
each fence, and refuses a check where the storage has an older one.
"""

from __future__ import annotations

import os
from binascii import b2a_base64
from collections import OrderedDict
from collections.abc import Container, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from fencing.kernel.errors import UnclaimedFence
from fencing.kernel.fence import Fence, HasFence, Mark
from fencing.kernel.process import after_fork
from fencing.kernel.waking import safe_lock

REMEMBERED_WRITES = 16
"""How many of its last writes a mark remembers, in every guard."""

ID_CHARACTERS = 12
"""The length of a write's id."""

MOST_FENCES = 4096
"""How many fences one guard object remembers. The fences used last stay."""


def new_id() -> str:
    """Return a random id for a write, or for a table: letters, digits, + and /. (``secrets`` takes three times as
    long.)"""
    return b2a_base64(os.urandom(ID_CHARACTERS * 3 // 4), newline=False).decode()


class Acknowledged(NamedTuple):
    """A state of a mark that a storage has acknowledged."""

    seq: int
    write_id: str
    storage: object  # referenced, so that no other storage gets its id
    files: Mapping[str, object] | None = None  # the files of the storage, by their paths, where it has some


_new = tuple.__new__  # the constructor of a NamedTuple is a function in Python

_Key = tuple[object, ...]

_lock = safe_lock()  # reentrant: a signal handler may use a guard, too
_of_leases: WeakKeyDictionary[Any, dict[_Key, Acknowledged]] = WeakKeyDictionary()


def _in_child() -> None:
    global _lock
    _lock = safe_lock()


after_fork(_in_child)


class Continuity:
    """The memory of one guard object: the last state that the storage has acknowledged under each fence.

    What was acknowledged to a lease is also kept with the lease, as long as it lives. All guard objects over the same
    storage share that. A bare fence is remembered by the guard object alone, with a bound on their number.

    It is a lower bound: another guard object, or a transaction of the caller's own, may have written under the same
    fence meanwhile. The mark remembers ``REMEMBERED_WRITES`` writes, and the one that is checked may be among them. So
    after one less, it need not remember this guard's last write any more. Then only ``seq`` is compared.

    Args:
        storage: the object that stands for the storage, such as an engine or a store. It is compared by identity.
        part: what distinguishes two sets of marks in one storage, such as a schema or a prefix.
    """

    def __init__(self, storage: object, part: object = "") -> None:
        self._storage = storage
        self._id: _Key = (id(storage), part)
        self._fences: OrderedDict[_Key, Acknowledged] = OrderedDict()
        self._most = MOST_FENCES

    def last(self, holder: Fence | HasFence, fence: Fence, key: str = "") -> Acknowledged | None:
        """Return the last state that was acknowledged under this fence, for :func:`check`. None: there is none.

        Take it before the storage is asked, unless a lock keeps other threads out until the answer is checked. Another
        thread may share the fence, and its write may be acknowledged meanwhile.

        Args:
            holder: the lease or fence that the caller passed.
            fence: its fence.
            key: of the object whose mark it is, where a storage has other marks than the resource's.
        """
        name = (fence.number, fence.token, fence.resource, key)
        last = self._fences.get(name)
        if not isinstance(holder, Fence):
            shared = self._shared(holder)
            kept = None if shared is None else shared.get((self._id, name))
            if kept is not None and (last is None or kept.seq > last.seq):
                last = kept
        return last

    def remember(
        self,
        holder: Fence | HasFence,
        fence: Fence,
        seq: int,
        write_id: str,
        key: str = "",
        files: Mapping[str, object] | None = None,
    ) -> None:
        """Remember a state that the storage has acknowledged. Never call it before the commit is acknowledged.

        Args:
            holder: the lease or fence that the caller passed.
            fence: its fence.
            seq: the mark's, with the addition of the write that was acknowledged.
            write_id: of that write; of a claim, the newest one that the mark remembers. "": there is none.
            key: as for :meth:`last`.
            files: what stands for each file of the storage, by its path, where it has some.
        """
        name = (fence.number, fence.token, fence.resource, key)
        state = _new(Acknowledged, (seq, write_id, self._storage, files))
        with _lock:
            last = self._fences.get(name)
            if last is None or last.seq <= seq:  # a slower thread must not replace what a faster one has stored
                self._fences[name] = state
            self._fences.move_to_end(name)
            while len(self._fences) > self._most:
                self._fences.popitem(last=False)
            if not isinstance(holder, Fence):
                shared = self._shared(holder, make=True)
                if shared is not None:
                    kept = shared.get((self._id, name))
                    if kept is None or kept.seq <= seq:
                        shared[self._id, name] = state

    @staticmethod
    def _shared(holder: HasFence, make: bool = False) -> dict[_Key, Acknowledged] | None:
        try:
            if make:
                return _of_leases.setdefault(holder, {})
            return _of_leases.get(holder)
        except TypeError:  # it is no lease of ours, and has no hash or no weak references: the fence must do
            return None


def check(
    last: Acknowledged | None,
    fence: Fence,
    seq: int,
    recent_writes: Container[str],
    files: Mapping[str, object] | None = None,
) -> None:
    """Refuse a claim or a write if the storage has lost a state that it had acknowledged under this fence.

    Call it with what the storage answered, before its transaction is committed or its conditional put is sent.

    Args:
        last: the last acknowledged state. See :meth:`Continuity.last`.
        fence: the holder's. The mark is this fence's own.
        seq: the mark's, without the addition of the write that is being checked.
        recent_writes: the ids of the last writes that the mark remembers: a list, or a text of them. It may already
            have the id of the write that is being checked.
        files: as for :meth:`Continuity.remember`. A file that was replaced has lost the state, also where a log that
            was left beside it has brought the mark back.

    Raises:
        UnclaimedFence: it has lost such a state. Nothing may be written.
    """
    if last is None:
        return
    since = seq - last.seq
    is_lost = since < 0 or (since < REMEMBERED_WRITES - 1 and last.write_id and last.write_id not in recent_writes)
    if is_lost or (last.files is not files and _are_replaced(last.files, files)):
        raise UnclaimedFence(fence=fence, mark=Mark(fence.number, fence.token, seq), acknowledged=last.seq)


def _are_replaced(before: Mapping[str, object] | None, files: Mapping[str, object] | None) -> bool:
    if not before or not files:
        return False
    return any(files.get(path, file) != file for path, file in before.items())


def check_mark(last: Acknowledged | None, fence: Fence, mark: Mark | None, recent_writes: Container[str]) -> None:
    """Refuse as :func:`check`, given the mark as it was found before a claim: a restore may have taken the claim, too.

    A mark that makes the fence stale is left to the rule of admission.
    """
    is_own = mark is not None and mark.is_of(fence)
    if mark is None or is_own or mark.number < fence.number:
        check(last, fence, mark.seq if mark is not None and is_own else 0, recent_writes)
