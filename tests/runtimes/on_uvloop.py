"""A pytest plugin: every event loop that asyncio makes is one of uvloop."""

import asyncio

import uvloop

asyncio.new_event_loop = asyncio.events.new_event_loop = uvloop.new_event_loop


def pytest_report_header() -> str:
    """Say which loop asyncio runs."""

    async def name_of_loop() -> str:
        return type(asyncio.get_running_loop()).__module__

    return f"event loops: {asyncio.run(name_of_loop())}"
