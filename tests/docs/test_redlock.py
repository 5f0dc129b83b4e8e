"""The example and the rule of docs/coordinators/redlock.md work as they stand, on real servers."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from fencing import Fence, RedlockCoordinator
from storage_guards import MemoryGuard
from tests.support.redlock import start_node

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "coordinators" / "redlock.md").read_text("utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    with ExitStack() as stack:
        ports = [stack.enter_context(start_node()).port for _ in range(5)]
        text = EXAMPLES[0].replace('host=f"lock-{number}"', f'host="127.0.0.1", port={ports}[number - 1]')
        exec(text, names)
        assert int(capsys.readouterr().out) > 1e15
        names["coordinator"].close()


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
