"""Clocks that jump, with the library of the wheel: a machine with Debian's package uses that one everywhere else."""

from __future__ import annotations

import platform
import time
from contextlib import ExitStack

import pytest

from examples.servers import FakeClock, start_redis
from examples.servers.clocks import find_faketime_in_wheel
from examples.servers.redis import version_for_clocks
from tests.support import wait_until
from tests.support.fixtures import missing


@pytest.mark.parametrize(("system", "machine"), [("Darwin", "x86_64"), ("Linux", "aarch64")])
def test_the_library_of_the_wheel_is_for_one_kind_of_machine(
    system: str, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert find_faketime_in_wheel() is None


@pytest.mark.thorough
def test_servers_start_with_the_library_of_the_wheel_and_their_clocks_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    if find_faketime_in_wheel() is None:
        missing("libfaketime", "found no wheel of libfaketime (Linux with x86-64: pip install libfaketime)")
    monkeypatch.setattr("examples.servers.clocks.find_faketime", find_faketime_in_wheel)
    with ExitStack() as stack:
        for _ in range(5):
            clock = stack.enter_context(FakeClock())
            server = start_redis(own=True, version=version_for_clocks(), environment=clock.environment)
            client = stack.enter_context(stack.enter_context(server).client(socket_timeout=5))
            client.set("lock", "token", px=30_000)
            clock.set(3600)
            wait_until(lambda client=client: client.time()[0] - time.time() > 3000)  # type: ignore[misc]
            assert not client.exists("lock")
            clock.set(0)
            wait_until(lambda client=client: client.time()[0] - time.time() < 3000)  # type: ignore[misc]
