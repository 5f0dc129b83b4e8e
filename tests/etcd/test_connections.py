"""Connections that nobody uses any more are closed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from examples.servers import EtcdServer
from fencing.etcd.calls import Call
from fencing.etcd.connection_async import AsyncConnection
from tests.support.etcd import EtcdSide

STATUS = Call("maintenance/status", b"{}", 30)


def test_what_opens_while_its_loop_is_about_to_end_is_closed(
    etcd_server: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop of renewals ends when there is nothing to renew. It closed what it had, and this was open later."""
    coordinator: Any = EtcdSide(True, [etcd_server.url]).coordinator()
    connections, opened = coordinator._backend._connections, list[AsyncConnection]()

    async def story() -> None:
        opens, ended = asyncio.Event(), asyncio.Event()
        open_now = AsyncConnection.open

        async def open_later(connection: AsyncConnection, *args: Any) -> None:
            opens.set()
            await ended.wait()
            await open_now(connection, *args)
            opened.append(connection)

        monkeypatch.setattr(AsyncConnection, "open", open_later)
        asking = asyncio.create_task(connections.perform(STATUS))
        await opens.wait()
        connections._pools.stop_of(asyncio.get_running_loop())
        ended.set()
        assert (await asking).message["version"]
        [connection] = opened
        assert connection._writer is None
        await coordinator.close()

    asyncio.run(asyncio.wait_for(story(), 60))
