"""What a guard remembers of acknowledged writes, and which state of a storage it therefore refuses."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import pytest

from fencing import Fence, UnclaimedFence
from storage_guards import continuity
from storage_guards.continuity import REMEMBERED_WRITES, Continuity, check

FENCE = Fence("orders:1", 7, "a" * 22)


class Lease:
    """A holder, as a lease is one."""

    def __init__(self, fence: Fence = FENCE) -> None:
        self.fence = fence


@dataclass(slots=True)
class Unhashable:
    """A holder without hash and weak references."""

    fence: Fence


def assert_continuous(
    memory: Continuity, holder: Any, fence: Fence, seq: int, recent: Container[str], key: str = ""
) -> None:
    check(memory.last(holder, fence, key), fence, seq, recent)


HOLDERS: dict[str, Any] = {"lease": Lease(), "fence": FENCE, "a holder that is no lease": Unhashable(FENCE)}
STORAGE = object()


@pytest.fixture(params=HOLDERS)
def holder(request: pytest.FixtureRequest) -> Any:
    return HOLDERS[request.param]


@pytest.mark.parametrize(
    ("seq", "recent", "refused"),
    [
        (5, ["w5", "w4"], False),
        (6, ["w6", "w5"], False),  # another guard object has written under the same fence
        (4, ["w4", "w3"], True),  # the write is gone
        (0, [], True),
        (5, ["x5", "w4"], True),  # it is gone, and another guard object has raised seq again
        (6, ["x6", "x5", "w4"], True),
        (5 + REMEMBERED_WRITES - 2, ["x"] * (REMEMBERED_WRITES - 1), True),
        (5 + REMEMBERED_WRITES - 1, ["x"] * REMEMBERED_WRITES, False),  # these, and the one that is checked
    ],
)
def test_a_state_without_the_acknowledged_write_is_refused(
    holder: Any, seq: int, recent: list[str], refused: bool
) -> None:
    memory = Continuity(object())
    assert_continuous(memory, holder, FENCE, 0, [])
    memory.remember(holder, FENCE, 5, "w5")
    for writes in (recent, " ".join(recent)):
        if not refused:
            assert_continuous(memory, holder, FENCE, seq, writes)
            continue
        with pytest.raises(UnclaimedFence, match="discard what was read") as caught:
            assert_continuous(memory, holder, FENCE, seq, writes)
        assert caught.value.acknowledged == 5
        assert caught.value.mark is not None
        assert caught.value.mark.seq == seq


def test_a_slower_thread_does_not_take_back_what_a_faster_one_has_remembered(holder: Any) -> None:
    memory = Continuity(object())
    memory.remember(holder, FENCE, 6, "w6")
    memory.remember(holder, FENCE, 5, "w5")
    with pytest.raises(UnclaimedFence):
        assert_continuous(memory, holder, FENCE, 5, ["w5"])


def test_a_claim_without_any_write_is_remembered_by_its_seq() -> None:
    memory = Continuity(object())
    memory.remember(FENCE, FENCE, 3, "")
    assert_continuous(memory, FENCE, FENCE, 3, [])
    with pytest.raises(UnclaimedFence):
        assert_continuous(memory, FENCE, FENCE, 2, [])


def test_guard_objects_over_one_storage_share_what_a_lease_was_acknowledged() -> None:
    lease, storage = Lease(), object()
    Continuity(storage, "public").remember(lease, FENCE, 5, "w5")
    with pytest.raises(UnclaimedFence):
        assert_continuous(Continuity(storage, "public"), lease, FENCE, 4, ["w4"])
    assert_continuous(Continuity(storage, "another schema"), lease, FENCE, 4, ["w4"])
    assert_continuous(Continuity(object(), "public"), lease, FENCE, 4, ["w4"])
    assert_continuous(Continuity(storage, "public"), Lease(), FENCE, 4, ["w4"])
    assert_continuous(Continuity(storage, "public"), FENCE, FENCE, 4, ["w4"])


def test_one_guard_object_knows_a_lease_by_its_bare_fence_too() -> None:
    memory = Continuity(object())
    memory.remember(Lease(), FENCE, 5, "w5")
    for holder in (FENCE, Lease()):
        with pytest.raises(UnclaimedFence):
            assert_continuous(memory, holder, FENCE, 4, ["w4"])


def test_resources_fences_and_keys_are_apart() -> None:
    memory = Continuity(object())
    memory.remember(FENCE, FENCE, 5, "w5", key="a")
    assert_continuous(memory, FENCE, FENCE, 0, [], key="b")
    assert_continuous(memory, FENCE, FENCE, 0, [])
    for other in (Fence("orders:2", 7, "a" * 22), Fence("orders:1", 7, "b" * 22)):
        assert_continuous(memory, other, other, 0, [], key="a")


def test_the_memory_is_bounded_and_the_fences_used_last_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuity, "MOST_FENCES", 3)
    memory = Continuity(object())
    fences = [Fence(f"orders:{number}", 7, "a" * 22) for number in range(1, 6)]
    leases = [Lease(fence) for fence in fences]
    for lease, fence in zip(leases, fences, strict=True):
        memory.remember(lease, fence, 5, "w5")
        memory.remember(fences[0], fences[0], 5, "w5")
    assert len(memory._fences) == 3
    assert_continuous(memory, fences[1], fences[1], 0, [])  # forgotten
    for holder, fence in ((fences[0], fences[0]), (fences[4], fences[4]), (leases[1], fences[1])):
        with pytest.raises(UnclaimedFence):
            assert_continuous(memory, holder, fence, 0, [])


def test_a_lease_that_is_gone_takes_its_memory_along() -> None:
    memory, lease = Continuity(object()), Lease()
    gc.collect()
    before = len(continuity._of_leases)
    memory.remember(lease, FENCE, 5, "w5")
    assert len(continuity._of_leases) == before + 1
    del lease
    gc.collect()
    assert len(continuity._of_leases) == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_process_remembers_although_another_thread_was_remembering() -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with continuity._lock:
            held.set()
            done.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    child = os.fork()
    if child == 0:  # pragma: no cover - the child
        code = 1
        try:
            acquired = continuity._lock.acquire(timeout=5)
            code = 0 if acquired else 2
        finally:
            os._exit(code)
    done.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
