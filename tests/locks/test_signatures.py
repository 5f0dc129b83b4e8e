"""What ``inspect.signature`` and ``help()`` show: the options by their names, with their defaults."""

from __future__ import annotations

import inspect
import pydoc
import re
from collections.abc import Callable
from typing import Any

import pytest

import fencing
from fencing import AsyncMemoryCoordinator, MemoryCoordinator
from fencing.locks.settings import Settings

NAMES = ["Coordinator", "MemoryCoordinator", "RedisCoordinator", "RedlockCoordinator", "SQLCoordinator"]
OPTIONS = ["ttl", "renew", "max_lifetime", "owner", "max_waiters", "guards"]
OF_LOCKS = {"": OPTIONS, "Async": [*OPTIONS, "stall_limit"]}


def shown(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(function).parameters
    assert not any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return dict(parameters)


@pytest.mark.parametrize("side", ["", "Async"])
@pytest.mark.parametrize("name", NAMES)
def test_a_coordinator_shows_its_options_with_their_defaults(side: str, name: str) -> None:
    kind = getattr(fencing, side + name)
    parameters = shown(kind)
    assert [each for each in parameters if each in (*OF_LOCKS[side], "prefix")] == [*OF_LOCKS[side], "prefix"]
    assert {each: parameters[each].default for each in OPTIONS} == {each: getattr(Settings(), each) for each in OPTIONS}
    assert parameters["prefix"].default is None
    text = re.sub(r"[\s|]+", " ", pydoc.plain(pydoc.render_doc(kind)))  # from Python 3.13 on, one option a line
    assert "ttl: float = 10.0, renew: bool = True" in text
    if side:
        assert repr(parameters["stall_limit"].default) == "<3 ttls>"


@pytest.mark.parametrize("method", ["lock", "acquire", "try_acquire", "hold", "hold_all", "locked"])
@pytest.mark.parametrize("kind", [MemoryCoordinator, AsyncMemoryCoordinator])
def test_a_call_shows_the_options_of_a_lock(kind: Any, method: str) -> None:
    function = getattr(kind(), method)
    parameters = shown(function)
    options = OF_LOCKS["Async" if kind is AsyncMemoryCoordinator else ""]
    assert list(parameters)[-len(options) :] == options
    assert {repr(parameters[each].default) for each in options} == {"<the coordinator's>"}
    assert "ttl: float = <the coordinator's>" in pydoc.plain(pydoc.render_doc(function))


@pytest.mark.parametrize("side", ["", "Async"])
def test_a_lock_shows_its_options(side: str) -> None:
    own = ["client_or_coordinator", "resource", "reentrant"]
    assert list(shown(getattr(fencing, f"{side}FencedLock"))) == own + OF_LOCKS[side]
