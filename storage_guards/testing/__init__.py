"""The contract of guards, as tests that a new guard runs in about ten lines::

    class TestMyGuard(GuardContract):
        def make(self):
            return MyGuard(connect())

        def read(self, resource):
            return my_storage.get(resource, 0)

        def write(self, fence, resource, value, **options):
            self.guard.write(fence, resource, value, **options)

        def write_unguarded(self, resource, value):
            my_storage.put(resource, value)

        def add(self, fence, resource, between, **options):
            with self.guard.begin(fence, **options) as transaction:
                value = transaction.get(resource, 0)
                between()
                transaction.put(resource, value + 1)

Each method may be ``async def``. Then ``add`` awaits ``asyncio.to_thread(between)``, because ``between`` may block. It
needs pytest, or another runner that collects ``test_`` methods and makes a new instance for each.
"""

from __future__ import annotations

from storage_guards.testing.races import GuardRaces
from storage_guards.testing.rules import AWKWARD_ENDS, GuardRules

__all__ = ["AWKWARD_ENDS", "GuardContract"]


class GuardContract(GuardRules, GuardRaces):
    """The tests that every guard passes. Each test uses resources of its own, so the storage need not be empty."""
