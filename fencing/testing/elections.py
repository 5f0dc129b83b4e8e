"""The part of the coordinators' suite about elections."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fencing.testing.base import CoordinatorTests
from fencing.testing.contract import CALL_SECONDS


class Elections(CoordinatorTests):
    """Tests of elections: terms that follow each other, and campaigns that are ended."""

    def test_a_leader_that_resigns_is_followed_by_another_one(self) -> None:
        first, second, name = self._make(), self._make(), self._name()
        terms: list[tuple[str, int]] = []
        elections = [first.election(name, value="replica 1"), second.election(name, value="replica 2")]
        with ThreadPoolExecutor(2) as pool:
            assert self.call(elections[0].leader) is None
            running = [pool.submit(self.call, elections[0].run, self._term(elections[0], terms))]
            try:
                self.wait_until(lambda: terms)
                running.append(pool.submit(self.call, elections[1].run, self._term(elections[1], terms)))
                leader = self.call(elections[1].leader)
                assert (leader.value, leader.number) == terms[0]
                elections[0].stop()
                assert running[0].result(CALL_SECONDS) is None
                self.wait_until(lambda: len(terms) == 2, seconds=CALL_SECONDS)
                leader = self.call(elections[0].leader)
                assert (leader.value, leader.number) == terms[1]
            finally:
                for election in elections:
                    election.stop()
            assert running[1].result(CALL_SECONDS) is None
        assert [value for value, _ in terms] == ["replica 1", "replica 2"]
        assert terms[0][1] < terms[1][1]
        assert self.call(elections[0].leader) is None

    def test_a_campaign_is_stopped_while_another_one_leads(self) -> None:
        coordinator, name = self._make(), self._name()
        lease = self.call(coordinator.acquire, name)
        other, terms = self._make(), []  # type: ignore[var-annotated]
        election = other.election(name)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(self.call, election.run, self._term(election, terms))
            try:
                self.wait_until(lambda: election._candidates)
            finally:
                election.stop()
            assert running.result(CALL_SECONDS) is None
        assert not terms
        assert self.call(lease.release) is True
        again = self.call(coordinator.acquire, name, timeout=10)  # the campaign has left the queue
        assert self.call(again.release) is True

    def test_all_locks_are_released_at_once_and_the_coordinator_stays_open(self) -> None:
        coordinator, other, names = self._make(), self._make(), [self._name() for _ in range(3)]
        leases = [self.call(coordinator.acquire, name) for name in names]
        self.call(coordinator.release_all)
        assert not any(lease.held for lease in leases)
        for name in names:
            self.call(self.call(other.acquire, name, timeout=10).release)
        again = self.call(coordinator.acquire, names[0])
        assert again.fence.number > leases[0].fence.number
        assert self.call(again.release) is True

    def _term(self, election: Any, terms: list[tuple[str, int]]) -> Callable[[Any], Any]:
        """Return what a leader does: it notes its term, and goes on until the election is stopped."""
        value = election._lock._settings.owner_label

        async def lead(lease: Any) -> None:
            terms.append((value, lease.fence.number))
            await asyncio.Event().wait()

        def lead_in_thread(lease: Any) -> None:
            terms.append((value, lease.fence.number))
            while not (election.stopped or lease.lost.wait(0.005)):
                pass

        return lead if inspect.iscoroutinefunction(election.run) else lead_in_thread
