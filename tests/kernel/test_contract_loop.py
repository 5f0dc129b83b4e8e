"""The event loop that all contract suites of a process share."""

from __future__ import annotations

import asyncio
import concurrent.futures

import pytest

from fencing.testing.contract import Contract


class _Suite(Contract):
    __test__ = False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_interrupt_of_one_test_does_not_end_the_loop_of_the_others() -> None:
    async def interrupted() -> None:
        raise KeyboardInterrupt

    async def other() -> int:
        await asyncio.sleep(0)
        return 7

    suite = _Suite()
    with pytest.raises((KeyboardInterrupt, concurrent.futures.CancelledError)):
        suite.call(interrupted)
    assert suite.call(other) == 7
