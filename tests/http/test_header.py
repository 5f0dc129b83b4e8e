"""The header Fencing-Token: written once, parsed strictly."""

from __future__ import annotations

import pickle
import time
from typing import Any

import httpx2
import pytest
from starlette.datastructures import Headers

from fencing import Fence, LeaseLost, MemoryCoordinator
from storage_guards.http import HEADER, MAX_HEADER, FenceRequired, fence_for, fences, header_of

A = Fence("orders:42", 7, "a" * 22)
B = Fence('ä" ,\\\U0001f512', 2**53 - 1, "b" * 128)


def test_what_is_written_is_read_back() -> None:
    assert header_of(A) == f'"7.{"a" * 22}.orders:42"'
    assert header_of(B, A) == f'"{A}", "{B}"'
    for found in (fences({HEADER: header_of(B, A)}), fences([(b"fencing-token", header_of(A, B).encode())])):
        assert found == (A, B)
    assert fences({}) == fences([(b"fencing-tokens", b"x"), (b"host", b"\xff")]) == ()


@pytest.mark.parametrize("kind", [httpx2.Headers, Headers, dict, list])
def test_the_headers_of_libraries(kind: Any) -> None:
    pairs = [("host", "x"), ("fencing-token", header_of(A))]
    assert fences(kind(pairs) if kind is not Headers else Headers(dict(pairs))) == (A,)


def test_a_header_sent_twice_is_one_list() -> None:
    lines = [(b"Fencing-Token", header_of(A).encode()), (b"fencing-token", header_of(B).encode())]
    assert fences(lines) == (A, B)
    with pytest.raises(ValueError, match="two fences of one resource"):
        fences([lines[0], lines[0]])
    with pytest.raises(ValueError, match="two fences of one resource"):
        fences([lines[0], (b"Fencing-Token", header_of(Fence("orders:42", 8, "c" * 22)).encode())])


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        ",",
        str(A),
        f'"{A}',
        f'{A}"',
        f'"{A}",',
        f',"{A}"',
        f'"{A}" "{B}"',
        f'"{A}";a=1',
        f'("{A}")',
        f':"{A}":',
        f'"{A}" \\',
        f'"\\{A}"',
        f'"{A}"\n',
        f'"0{A}"',
        f'"{A} "',
        f'"{A}é"',
        '""',
        '"7.short.r"',
        f'"9007199254740992.{"a" * 22}.r"',
        f'"7.{"a" * 22}.fencing:r"',
        f'"7.{"a" * 22}.%FF"',
        f'"7.{"a" * 22}.r%41"',
    ],
)
def test_what_is_malformed_is_refused(value: str) -> None:
    with pytest.raises(ValueError):
        fences({HEADER: value})
    with pytest.raises(ValueError):
        fences([(HEADER.encode(), value.encode("latin-1"))])


def test_a_long_header_is_refused_before_it_is_parsed() -> None:
    began = time.thread_time()
    for value in ('"' + "a" * 10_000_000, '"",' * 3_000_000, " " * 10_000_000):
        with pytest.raises(ValueError, match=f"characters, more than {MAX_HEADER}"):
            fences({HEADER: value})
    assert time.thread_time() - began < 1
    for value in (" " * MAX_HEADER, '"",' * (MAX_HEADER // 3), '"a" \t' * (MAX_HEADER // 5)):
        with pytest.raises(ValueError):
            fences({HEADER: value})
    assert time.thread_time() - began < 1
    with pytest.raises(ValueError, match="send fewer"):
        header_of(*(Fence(f"{number}{'x' * 500}", 1, "a" * 22) for number in range(20)))


def test_a_lease_that_has_ended_is_not_sent() -> None:
    with MemoryCoordinator().hold("r", timeout=1) as lease:
        assert fences({HEADER: header_of(lease)}) == (lease.fence,)
    with pytest.raises(LeaseLost):
        header_of(lease)


def test_a_handler_asks_for_the_fence_of_its_resource() -> None:
    assert fence_for({"fencing.fences": (B, A)}, "orders:42") == A
    for found in ((), (B,)):
        with pytest.raises(FenceRequired, match="no fence of 'orders:42'") as required:
            fence_for({"fencing.fences": found}, "orders:42")
        copy = pickle.loads(pickle.dumps(required.value))
        assert (copy.resource, str(copy)) == ("orders:42", str(required.value))
    with pytest.raises(RuntimeError, match="FencingMiddleware"):
        fence_for({}, "orders:42")
