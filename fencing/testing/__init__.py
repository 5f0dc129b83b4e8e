"""For those who write a backend or a guard, or test code that takes locks: contract suites, and a clock to move."""

from fencing.testing.clock import ManualClock
from fencing.testing.contract import Contract
from fencing.testing.coordinators import CoordinatorContract

__all__ = ["Contract", "CoordinatorContract", "ManualClock"]
