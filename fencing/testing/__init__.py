"""Contract suites for your own backends and guards, and a clock for tests of code that takes locks."""

from fencing.testing.clock import ManualClock
from fencing.testing.contract import Contract
from fencing.testing.coordinators import CoordinatorContract

__all__ = ["Contract", "CoordinatorContract", "ManualClock"]
