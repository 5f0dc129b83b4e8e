"""The contract of coordinators, as tests that a new backend runs in a few lines::

    class TestMyCoordinator(CoordinatorContract):
        def make(self, **options):
            return MyCoordinator(connect(), **options)

Sync and async coordinators run the same tests. A backend must refuse what it cannot do (see the capabilities in
``fencing/locks/backend.py``), and the suite checks for the refusal. It needs pytest, or another runner that collects
``test_`` methods.
"""

from __future__ import annotations

from fencing.testing.at_least import AtLeast
from fencing.testing.claims import Claims
from fencing.testing.elections import Elections
from fencing.testing.grants import Grants
from fencing.testing.requests import Requests
from fencing.testing.sessions import Sessions
from fencing.testing.slots import Slots


class CoordinatorContract(Grants, Requests, Claims, Sessions, Elections, Slots, AtLeast):
    """The tests that every coordinator passes. Each test uses its own resources, so the backend need not be empty."""
