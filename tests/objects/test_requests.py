"""Requests of the object-store guard are data: they say what to do, with values, and carry no code."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from obstore.store import MemoryStore

from fencing.kernel.fence import Fence
from storage_guards import ObjectStoreGuard
from storage_guards.objects import requests

DATA = [each for each in vars(requests).values() if isinstance(each, type) and is_dataclass(each)]
CODE: Any = (Callable, Awaitable, Iterator, AsyncIterator)
ANSWERS = {requests.Version, requests.Found, requests.Listed}
A, B = Fence("orders:1", 1, "a" * 22), Fence("orders:1", 2, "b" * 22)


def types_in(hint: Any) -> Iterator[Any]:
    """Every type that a hint is made of."""
    yield get_origin(hint) or hint
    for inner in hint if isinstance(hint, list) else get_args(hint):
        yield from types_in(inner)


@pytest.mark.parametrize("data", DATA)
def test_no_field_holds_code(data: type) -> None:
    """Neither by its type, nor by one that could be anything without saying so."""
    hints = get_type_hints(data)
    for field in fields(data):
        for one in types_in(hints[field.name]):
            assert one is not Any, f"{data.__name__}.{field.name} may be anything"
            assert not (isinstance(one, type) and issubclass(one, CODE)), f"{data.__name__}.{field.name} carries code"


@pytest.mark.parametrize("data", DATA)
def test_requests_do_not_change(data: Any) -> None:
    assert data.__dataclass_params__.frozen


def values_in(value: Any) -> Iterator[Any]:
    """Every value that a request is made of."""
    yield value
    if is_dataclass(value):
        for field in fields(value):
            yield from values_in(getattr(value, field.name))
    elif isinstance(value, Mapping):
        yield from (inner for item in value.items() for each in item for inner in values_in(each))
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes, memoryview)):
        yield from (inner for each in value for inner in values_in(each))


@pytest.mark.thorough
def test_no_request_of_any_operation_carries_code() -> None:
    guard = ObjectStoreGuard(MemoryStore())
    perform = guard._perform
    asked: list[Any] = []

    def observe(request: Any, *args: Any, **options: Any) -> Any:
        asked.append(request)
        return perform(request, *args, **options)

    guard._perform = observe  # type: ignore[method-assign]
    guard.verify()
    guard.claim(A)
    guard.publish(A, {"big": [bytes(2**20)] * 9, "small": b"1"}, progress=lambda *_: None)
    with pytest.raises(ZeroDivisionError):
        guard.publish(A, {"big": (bytes(2**20 // (12 - number) * 12) for number in range(13))})
    current = guard.read(A.resource)
    assert current is not None
    assert len(current.read("big")) == 9 * 2**20
    guard.delete(A)
    guard.write(A, "key", b"1")
    guard.get("key")
    guard.claim(B)
    assert len(guard.collect(B)) == 1
    for request in asked:
        for value in values_in(request):
            assert not callable(value), f"{type(request).__name__} carries {value!r}"
            assert not inspect.isawaitable(value), f"{type(request).__name__} carries {value!r}"
    # A memory store signs nothing.
    assert {type(request) for request in asked} == set(DATA) - ANSWERS - {requests.Sign}, (
        "each kind of request was among them"
    )
