"""What tests of every kind share."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], timeout: float = 90.0, *, interval: float = 0.005) -> None:
    """Wait until `condition()` is true; AssertionError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not true within {timeout} s: {condition}")
        time.sleep(interval)
