"""The reader of replies that stands in for hiredis: the same values, however the bytes arrive."""

from __future__ import annotations

import random
from typing import Any

import pytest
from redis.exceptions import BusyLoadingError, InvalidResponse, NoScriptError, RedisError, ResponseError

from fencing.redis.resp import INCOMPLETE, Reader, new_reader


def read_all(reader: Any, chunks: list[bytes]) -> list[Any]:
    replies = []
    for chunk in chunks:
        reader.feed(chunk)
        while (reply := reader.gets()) is not INCOMPLETE:
            replies.append(reply)
    return replies


def packed(value: Any) -> bytes:
    if value is None:
        return b"$-1\r\n"
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, list):
        return b"*%d\r\n%b" % (len(value), b"".join(map(packed, value)))
    return b"$%d\r\n%b\r\n" % (len(value), value)


def some_value(chance: random.Random, depth: int = 2) -> Any:
    kind = chance.randrange(4 if depth else 3)
    if kind == 0:
        return None
    if kind == 1:
        return chance.randrange(-(2**53), 2**53)
    if kind == 2:
        return chance.randbytes(chance.randrange(20)) + chance.choice([b"", b"\r\n", b"$5\r\n"])
    return [some_value(chance, depth - 1) for _ in range(chance.randrange(4))]


@pytest.mark.parametrize("seed", range(20))
def test_replies_are_read_as_hiredis_reads_them(seed: int) -> None:
    chance = random.Random(seed)
    values = [some_value(chance) for _ in range(20)]
    data = b"".join(map(packed, values))
    cuts = sorted(chance.randrange(len(data)) for _ in range(30))
    chunks = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    assert read_all(Reader(), chunks) == values
    assert read_all(new_reader(), chunks) == values


@pytest.mark.parametrize("make", [Reader, new_reader])
def test_arrays_in_arrays_and_no_array(make: Any) -> None:
    assert read_all(make(), [b"*1\r\n" * 9 + b":1\r\n", b"*-1\r\n", b"*2\r\n*-1\r\n*0\r\n"]) == [
        [[[[[[[[[1]]]]]]]]],
        None,
        [None, []],
    ]


def test_a_reply_may_arrive_in_any_pieces() -> None:
    data = b"*2\r\n$7\r\ngranted\r\n$1\r\n7\r\n-NOSCRIPT none\r\n+OK\r\n"
    for cut in range(len(data)):
        first, error, ok = read_all(Reader(), [data[:cut], data[cut:]])
        assert first == [b"granted", b"7"]
        assert isinstance(error, NoScriptError)
        assert ok == b"OK"


@pytest.mark.parametrize("make", [Reader, new_reader])
@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (b"-NOSCRIPT No matching script.\r\n", NoScriptError, "No matching script."),
        (b"-LOADING Redis is loading\r\n", BusyLoadingError, "Redis is loading"),
        (b"-WRONGTYPE Operation\r\n", ResponseError, "WRONGTYPE Operation"),
        (b"-ERR\r\n", ResponseError, "ERR"),
    ],
)
def test_errors_have_the_classes_of_redis_py(make: Any, data: bytes, kind: type[RedisError], text: str) -> None:
    [error] = read_all(make(), [data])
    assert type(error) is kind
    assert str(error) == text


@pytest.mark.parametrize("make", [Reader, new_reader])
@pytest.mark.parametrize(
    "data",
    [b"HTTP/1.1 400 Bad Request\r\n", b"*x\r\n", b"$a\r\n", b":1.5\r\n", b"*1\r\n" * 20_000],
    ids=["http", "array", "bulk", "float", "nested"],
)
def test_bytes_that_are_not_a_reply_are_refused(make: Any, data: bytes) -> None:
    with pytest.raises(InvalidResponse):
        read_all(make(), [data])
