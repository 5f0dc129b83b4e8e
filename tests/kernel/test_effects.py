"""The shells that run plans."""

from __future__ import annotations

import asyncio
import gc
import warnings

import pytest

from fencing.kernel.effects import finish


def test_a_coroutine_that_was_cancelled_before_it_began_is_closed() -> None:
    """A loop that ends cancels all its tasks, those included that were just made."""

    async def story() -> None:
        shielding = asyncio.ensure_future(finish(asyncio.sleep(1)))
        await asyncio.sleep(0)  # it has made a task, which has not begun
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await shielding

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(story())
        gc.collect()
    assert [str(warning.message) for warning in caught] == []
