"""The contract of coordinators, as tests that a new backend runs in a few lines::

    class TestMyCoordinator(CoordinatorContract):
        def make(self, **options):
            return MyCoordinator(connect(), **options)

Sync and async coordinators run the same tests. What a backend cannot do (see the capabilities in
``fencing/locks/backend.py``) it must refuse, and the suite looks for the refusal. Needs pytest, or anything else that
collects ``test_`` methods.
"""

from __future__ import annotations

from fencing.testing.claims import Claims
from fencing.testing.grants import Grants
from fencing.testing.requests import Requests


class CoordinatorContract(Grants, Requests, Claims):
    """Every coordinator passes these. Each test uses resources of its own, so the backend need not be empty."""
