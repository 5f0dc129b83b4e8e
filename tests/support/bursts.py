"""Many locks at once, by threads or by tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from tests.support import wait_until
from tests.support.loops import until
from tests.support.sides import Side

AT_ONCE = 24
MANY = tuple(f"burst:{number}" for number in range(AT_ONCE))


def burst_until(side: Side, coordinator: Any, names: tuple[str, ...], condition: Callable[[], object]) -> None:
    """Take and release these locks again and again, many at once, until the condition is true."""
    is_over = threading.Event()

    def pairs(name: str) -> None:
        while not is_over.is_set():
            coordinator.acquire(name, timeout=60).release()

    async def pairs_async(name: str) -> None:
        while not is_over.is_set():
            await (await coordinator.acquire(name, timeout=60)).release()

    async def story() -> None:
        tasks = [asyncio.create_task(pairs_async(names[number % len(names)])) for number in range(AT_ONCE)]
        try:
            await until(condition)
        finally:
            is_over.set()
            await asyncio.gather(*tasks)

    if side.asynchronous:
        side.call(story)
        return
    threads = [threading.Thread(target=pairs, args=(names[number % len(names)],)) for number in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    try:
        wait_until(condition)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
