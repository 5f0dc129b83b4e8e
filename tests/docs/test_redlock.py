"""The example and the rule of docs/coordinators/redlock.md work as they stand, on real servers."""

from __future__ import annotations

import asyncio
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
import sqlalchemy

from fencing import Fence, RedlockCoordinator
from storage_guards import MemoryGuard
from tests.support.redlock import start_node

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "coordinators" / "redlock.md").read_text("utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.thorough
def test_the_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    assert len(EXAMPLES) == 3
    with ExitStack() as stack:
        ports = [stack.enter_context(start_node()).port for _ in range(5)]
        for text in EXAMPLES:
            exec(text.replace("[7001, 7002, 7003, 7004, 7005]", str(ports)), names)
        with names["engine"].connect() as connection:
            [fence] = connection.execute(sqlalchemy.text("SELECT fence FROM jobs WHERE name = 'nightly'")).scalars()
        assert asyncio.run(names["work"]()) > fence > 1e15
        names["coordinator"].close()
        names["engine"].dispose()


def test_the_rule_for_the_user_allows_all_calls_and_no_other_keys() -> None:
    [rule] = re.findall(r"(?m)^ACL SETUSER .*$", PAGE)
    with ExitStack() as stack:
        servers = [stack.enter_context(start_node()) for _ in range(3)]
        clients = []
        for server in servers:
            admin: Any = stack.enter_context(server.client())
            admin.execute_command(*rule.split())
            clients.append(redis.Redis(host=server.host, port=server.port, username="worker", password="secret"))
            stack.callback(clients[-1].close)
        guard = MemoryGuard()
        coordinator = stack.enter_context(RedlockCoordinator(clients, ttl=60, node_timeout=1.0, guards=[guard]))
        coordinator.initialise()
        lease = coordinator.acquire("orders:42", timeout=10)
        lease.renew()
        assert coordinator.try_acquire("orders:42") is None
        adopted = coordinator.lock("orders:42").adopt(lease.detach())
        holder = coordinator.holder("orders:42")
        assert holder is not None
        assert holder.number == adopted.fence.number
        assert adopted.release()
        coordinator.acquire("orders:42", timeout=10).detach()
        coordinator.force_release("orders:42")
        guard.claim(Fence("orders:42", adopted.fence.number + 10**6, "b" * 22))
        coordinator.acquire("orders:42", timeout=10).release()  # its number is minted again
        with pytest.raises(redis.exceptions.NoPermissionError):
            clients[0].get("invoices:1")
