"""Everything that the library parses, with generated and damaged input, from one seed.

A parser of :data:`PARSERS` has values. What is written of a value is read back as that value. What is damaged is read,
or refused with the error that its docstring names. What is read is written and read again as the same. No reading takes
a second of the processor, however often a piece is repeated.
"""

from __future__ import annotations

import functools
import math
import random
import string
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

import httpx2
from redis.exceptions import InvalidResponse, RedisError

from fencing.kernel.errors import FencingError, GuardNotEnforceable, MarkImplausible, StaleFence, UnclaimedFence
from fencing.kernel.fence import MAX_NUMBER, Fence, Mark
from fencing.redis.cluster.topology import Topology
from fencing.redis.keys import SLOTS
from fencing.redis.resp import INCOMPLETE, Reader, bulk
from fencing.sql import files
from storage_guards import HTTPGuard
from storage_guards.files import content
from storage_guards.http import HEADER, header_of, problem_of
from storage_guards.http.base import Reply
from storage_guards.http.claims import ReadMark, plan_answer
from storage_guards.http.header import items
from storage_guards.http.problems import UNKNOWN_TOKEN, Problem, error_of
from storage_guards.http.screening import Screening
from storage_guards.kept import NOTHING_DONE, Done, DoneKeys, Kept, NoHolder
from storage_guards.objects import pointer
from storage_guards.objects.keys import DataKey, Directory
from storage_guards.psycopg import sources
from tests.support.object_publications import SHA256, published

__all__ = ["PARSERS", "Parser", "Tally", "attack"]

LONGEST_SECONDS = 1.0
"""Of the processor, for one reading. The input has 64 KiB at most, so what is linear takes a hundredth of that."""

MOST_CHARACTERS = 65_536

KEY = b"k" * 32
SECRET = "hunter2"
CLAIMS = "/fencing/claims"
RESOURCE = "orders:42"
MINE = Fence(RESOURCE, 5, "m" * 22)
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)

Text = TypeVar("Text", str, bytes)


@dataclass(frozen=True)
class Parser:
    """One parser.

    Args:
        make: a value, by chance.
        write: its text, or its bytes.
        read: parses that. The value again, if it was not damaged.
        refused_with: the errors that its docstring names.
        is_exact: whether each text that is read is the text of what was read.
    """

    make: Callable[[random.Random], Any]
    write: Callable[[Any], str | bytes]
    read: Callable[[Any], Any]
    refused_with: tuple[type[BaseException], ...] = ()
    is_exact: bool = False


@dataclass
class Tally:
    """What became of the input of one parser."""

    read: int = 0
    refused: int = 0
    slowest: float = 0.0


PIECES = (
    *"\"'\\,;:.=?&/@[]{}*-+%0 \t\n\0\x7féß\u0663\u2028\U0001f512\ud800\ufeff",
    "//", "..", "[[[[", "  ", "\r\n", "%4", "%41", "%FF", "%00", "-1", "1.5", "1e999", "NaN", "null", "true", '{"a":',
    "9" * 16, "9" * 20, "9" * 5000, "9007199254740992",
    "*1\r\n", "$-1\r\n", "$9\r\n", "$99999999\r\n", ":1\r\n", "-MOVED 1 a:1\r\n", "-ASK x\r\n",
    ";sig=", ";sig=:", ";a=1", "file:", "file://[", "http://", "https://[::1", "postgresql://", "xn--", "data/", "~/",
)  # fmt: skip
"""What may be put in. ``\\u0663`` is a digit to ``int`` and to ``str.isdecimal``."""


def attack(
    seed: int, seconds: float = math.inf, cases: int | None = None, names: tuple[str, ...] = ()
) -> tuple[dict[str, Tally], list[str]]:
    """Feed each parser as many cases as there are, or for as long, and return what became of them, and the faults.

    The seed decides each case, whatever came before it.
    """
    tallies = {name: Tally() for name in names or PARSERS}
    faults: list[str] = []
    ends_at, number = time.monotonic() + seconds, 0
    while len(faults) < 10 and time.monotonic() < ends_at and (cases is None or number < cases):
        for name, tally in tallies.items():
            for fault in _one_case(PARSERS[name], random.Random(f"{seed} {name} {number}"), tally):
                faults.append(f"{name}, case {number} of seed {seed}: {fault}")
        number += 1
    return tallies, faults


def _one_case(parser: Parser, chance: random.Random, tally: Tally) -> Iterator[str]:
    """Try a value, whole and damaged, and yield what was wrong."""
    value = parser.make(chance)
    whole: Any = parser.write(value)
    damaged = _damaged(whole, chance)
    for text in (whole, damaged):
        tried = _tried(parser, text)
        tally.slowest = max(tally.slowest, tried.seconds)
        tally.refused += tried.is_refused
        tally.read += not tried.is_refused
        if tried.seconds > LONGEST_SECONDS:
            yield f"{_shown(text)} took {tried.seconds:.1f} s"
        if tried.error is not None and (text is whole or not tried.is_refused):
            yield f"{_shown(text)} raised {tried.error!r:.500}"
        elif text is whole and tried.found != value:
            yield f"{_shown(text)} was read as {tried.found!r:.500} instead of {value!r:.500}"
        elif tried.found is not None:
            written: Any = parser.write(tried.found)
            again = written if written == text else _tried(parser, written).found
            if written != text and (parser.is_exact or again != tried.found):
                yield f"{_shown(text)} was read as {tried.found!r:.500}, which is written as {_shown(written)}"


class Tried(NamedTuple):
    """What came of one reading."""

    found: Any
    error: BaseException | None
    is_refused: bool
    seconds: float


def _tried(parser: Parser, text: Any) -> Tried:
    found, error, is_refused = None, None, False
    began = time.thread_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of libraries, about odd input
            found = parser.read(text)
    except KeyboardInterrupt:
        raise
    except BaseException as raised:  # noqa: BLE001 - of any other kind, it is the fault that is looked for
        error, is_refused = raised, isinstance(raised, parser.refused_with)
    return Tried(found, error, is_refused, time.thread_time() - began)


def _damaged(text: Text, chance: random.Random) -> Text:
    """Return the text with a few pieces that were removed, repeated, put in or changed."""
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        start = chance.randint(0, len(text))
        end = min(len(text), start + chance.choice((0, 1, 1, 2, 5, 20, 10_000)))
        piece = text[start:end]
        kind = chance.randrange(6)
        if kind == 0:
            new = text[:0]
        elif kind == 1:
            new = piece + piece
        elif kind == 2 and chance.random() < 0.1:
            new = (piece or _piece(text, chance)) * chance.choice((100, 1000, 30_000))
        elif kind == 3:
            new = piece[::-1]
        else:
            new = _piece(text, chance)
        text = (text[:start] + new + text[end:])[:MOST_CHARACTERS]
    return text


def _piece(like: str | bytes, chance: random.Random) -> Any:
    """Return a piece to put in, of the kind of ``like``."""
    piece = chr(chance.randrange(256)) if chance.random() < 0.3 else chance.choice(PIECES)
    if isinstance(like, str):
        return piece
    return piece.encode("latin-1") if len(piece) == 1 and piece < "\u0100" else piece.encode("utf-8", "surrogatepass")


def _shown(text: str | bytes) -> str:
    return f"{text!r:.1000} ({len(text)} long)"


# Values


@functools.cache
def _client() -> httpx2.Client:
    return httpx2.Client(base_url="http://service")  # it sends nothing


def _token(chance: random.Random) -> str:
    return "".join(chance.choices(string.ascii_letters + string.digits + "_-", k=chance.choice((22, 23, 128))))


def _name(chance: random.Random, most: int = 12) -> str:
    signs = string.ascii_letters + string.digits + ' ./:%"\\,;=-_~äß€\U0001f512'
    return "r" + "".join(chance.choices(signs, k=chance.randrange(most)))


def _fence(chance: random.Random, resource: str | None = None) -> Fence:
    number = chance.choice((1, 7, MAX_NUMBER, chance.randint(1, MAX_NUMBER)))
    return Fence(_name(chance) if resource is None else resource, number, _token(chance))


def _id(chance: random.Random) -> str:
    return "".join(chance.choices(string.ascii_letters + string.digits, k=16))


def _header(chance: random.Random) -> str:
    fences = {(fence := _fence(chance)).resource: fence for _ in range(chance.randint(1, 3))}
    is_signed = chance.random() < 0.5
    return header_of(*fences.values(), key=KEY if is_signed else None, path=CLAIMS if is_signed else None)


def _read_header(text: str) -> Any:
    return items([(HEADER, text)])


def _written_header(found: Any) -> str:
    return ", ".join(f'"{fence}"' + (f";sig=:{signature}:" if signature else "") for fence, signature in found)


def _screened(text: str) -> Any:
    """Read it as both middlewares do: an answer, or entries of a scope."""
    for keys in (None, [KEY]):
        for is_claim in (False, True):
            received = Screening(keys, None).received([(HEADER, text)], CLAIMS, {}, is_claim=is_claim)
            if isinstance(received, Problem):
                assert received.status in (400, 401, 422), received
    return text


def _pointer(chance: random.Random) -> pointer.Pointer:
    state: pointer.Pointer | None = None
    for _ in range(chance.randint(1, 3)):
        fence = _fence(chance, RESOURCE)
        mark = Mark(fence.number, fence.token, chance.randrange(10))
        kind = chance.randrange(3)
        if kind == 0:
            state = pointer.with_claim(state, fence, mark, _id(chance), NOW)
        elif kind == 1:
            state = pointer.with_deletion(state, fence, mark, _id(chance), NOW)
        else:
            names = [_name(chance) for _ in range(chance.randrange(3))]
            keys = {name: Directory.data_key(fence, "u" * 16, name) for name in names}
            objects = {name: pointer.Entry(key, chance.randrange(10**12), SHA256) for name, key in keys.items()}
            state = pointer.with_publication(state, fence, mark, published(fence, _id(chance), NOW, objects))
    assert state is not None
    if chance.random() < 0.2:
        state = replace(state, kept=NoHolder(chance.randrange(5), chance.randrange(5)))
    return replace(state, done=_done(chance))


def _done(chance: random.Random) -> DoneKeys:
    keys = {_name(chance): Done(chance.randint(1, 9), NOW) for _ in range(chance.choice((0, 0, 2)))}
    return DoneKeys(chance.choice(("", "2026-11-23", "ä")), keys) if chance.random() < 0.5 else NOTHING_DONE


def _content(chance: random.Random) -> content.Content:
    writes = tuple(_id(chance) for _ in range(chance.randrange(4)))
    folders = tuple(_id(chance) for _ in range(chance.randrange(3)))
    data = chance.choice((None, b"", b"a\n\nb", chance.randbytes(20)))
    fence, readers = _fence(chance), chance.choice((0, 5))
    mark: Kept = Mark(fence.number, fence.token, chance.randrange(2**63), readers)
    kept = NoHolder(chance.randrange(5), readers) if chance.random() < 0.2 else mark
    return content.Content(fence.resource, kept, writes, folders, data, _done(chance))


def _key(chance: random.Random) -> DataKey:
    found = DataKey.parse(Directory.data_key(_fence(chance), _id(chance), _name(chance, 300)))
    assert found is not None
    return found


def _reply(chance: random.Random, depth: int = 3) -> Any:
    kind = chance.randrange(5 if depth else 3)
    if kind == 0:
        return None
    if kind == 1:
        return chance.randrange(-(2**53), 2**53)
    if kind == 2:
        return chance.randbytes(chance.randrange(20)) + chance.choice((b"", b"\r\n", b"$5\r\n"))
    return [_reply(chance, depth - 1) for _ in range(chance.randrange(4))]


def _packed(value: Any) -> bytes:
    if isinstance(value, list):
        return b"*%d\r\n%b" % (len(value), b"".join(map(_packed, value)))
    if isinstance(value, RedisError):
        return b"-ERR\r\n"
    return b"$-1\r\n" if value is None else b":%d\r\n" % value if isinstance(value, int) else bulk(value)


def _read_replies(data: bytes) -> Any:
    """Read it in two parts, and return the first reply; None: it is not complete, or an error."""
    reader = Reader()
    reader.feed(data[: len(data) // 2])
    replies = []
    if (reply := reader.gets()) is not INCOMPLETE:
        replies.append(reply)
    reader.feed(data[len(data) // 2 :])
    while len(replies) < 1000 and (reply := reader.gets()) is not INCOMPLETE:
        replies.append(reply)
    return replies[0] if replies and not _has_error(replies[0]) else None


def _has_error(reply: Any) -> bool:
    return isinstance(reply, RedisError) or (isinstance(reply, list) and any(map(_has_error, reply)))


def _slots(chance: random.Random) -> Any:
    ends = sorted({SLOTS, *(chance.randrange(1, SLOTS) for _ in range(chance.randrange(4)))})
    hosts = ("10.0.0.1", "::1", "node", "é.example")
    return [
        [begin, end - 1, [chance.choice(hosts).encode(), 7000 + place, b"i" * 40]]
        for place, (begin, end) in enumerate(zip([0, *ends], ends, strict=False))
    ]


def _read_slots(data: bytes) -> Any:
    """Read it as the answer to CLUSTER SLOTS, and return one that says the same; None: it is not complete."""
    reply = _read_replies(data)
    if reply is None:
        return None
    topology = Topology([("known", 1)], None, "it")
    topology.update(reply, ("asked", 1))
    ranges: list[Any] = []
    before = None
    for slot, owner in enumerate(topology.owners):
        if owner is not None and owner == before:
            ranges[-1][1] = slot
        elif owner is not None:
            ranges.append([slot, slot, [owner[0].encode(), owner[1], b"i" * 40]])
        before = owner
    return ranges


class Refusal:
    """An error of a service, which is equal to another one with the same fields."""

    def __init__(self, error: FencingError) -> None:
        self.error = error

    def __eq__(self, other: object) -> bool:
        mine, its = self.error, other.error if isinstance(other, Refusal) else None
        return (type(mine), str(mine), vars(mine)) == (type(its), str(its), vars(its))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{self.error!r} {vars(self.error)}"


def _refusal(chance: random.Random) -> Refusal:
    mark = Mark(chance.randint(MINE.number, MAX_NUMBER), UNKNOWN_TOKEN)
    return Refusal(
        chance.choice(
            (
                StaleFence(fence=MINE, mark=mark),
                StaleFence(fence=MINE, mark=None, floor=chance.randint(MINE.number, MAX_NUMBER)),
                UnclaimedFence(fence=MINE, mark=None),
                UnclaimedFence(fence=MINE, mark=mark, acknowledged=chance.randrange(10)),
                MarkImplausible(resource=RESOURCE, number=MINE.number, ceiling=chance.randrange(MINE.number)),
            )
        )
    )


_STATUSES = {StaleFence: 412, UnclaimedFence: 412, MarkImplausible: 422}


def _answered(refusal: Any) -> bytes:
    if not isinstance(refusal, Refusal):
        return b"{}"
    found = problem_of(refusal.error, {"fencing.fences": (MINE,)})
    assert found is not None
    return b"%d %b" % (found.status, found.body)


def _read_answer(data: bytes) -> Any:
    """Read it as the answer of each status, and as what both requests of a guard get."""
    status, _, body = data.partition(b" ")
    kind = "application/problem+json"
    guard = HTTPGuard(CLAIMS, _client(), key=KEY)
    for code in (200, 400, 401, 412, 422, 500):
        error = error_of(code, kind, body, [MINE], CLAIMS, True)
        assert error is None or len(str(error)) < 2000
        for plan in (guard._plan_claim((MINE,), None), guard._plan_mark(RESOURCE)):
            next(plan)
            try:
                plan.send(Reply(code, kind, body))
            except (StopIteration, FencingError):
                continue
            raise AssertionError("one answer is enough")
    error = error_of(int(status), kind, body, [MINE]) if status in (b"412", b"422") else None
    return None if error is None else Refusal(error)


def _read_query(text: str) -> Any:
    try:
        effect = next(plan_answer("GET", text, ()))
    except StopIteration as answered:
        assert answered.value.status == 400
        return None
    assert isinstance(effect, ReadMark)
    return effect.resource


def _url(chance: random.Random) -> str:
    host = chance.choice(("service", "service:8443", "[::1]:80", f"user:{SECRET}@10.0.0.1", "bücher.example"))
    path = "".join(chance.choices(string.ascii_letters + " %/:@;=+~ä€\U0001f512", k=chance.randrange(12)))
    return f"{chance.choice(('http', 'https'))}://{host}/{path}{chance.choice(('', '?a=b', '#c'))}"


def _read_url(text: str) -> str:
    guard = HTTPGuard(text, _client(), key=KEY)
    assert not httpx2.URL(guard._shown).userinfo
    next(plan := guard._plan_mark(RESOURCE))
    plan.close()
    plan = guard._plan_claim((MINE,), None)
    call: Any = next(plan)
    plan.close()
    assert call.headers[HEADER] == header_of(MINE, key=KEY, path=call.url.path)
    return text


def _file_uri(chance: random.Random) -> str:
    return f"file:{chance.choice(('', '//', '//localhost'))}/{_name(chance)}?mode=ro"


def _read_file_uri(text: str) -> str:
    path = files._named(text, {"uri": True})
    assert path is None or isinstance(path, str)
    return text


def _conninfo(chance: random.Random) -> str:
    host = chance.choice(("db", "10.0.0.1:5432", "[::1]", "a,b", ""))
    urls = (f"postgresql://app:{SECRET}@{host}/orders?connect_timeout=5", f"host=db password='{SECRET}' dbname=orders")
    return chance.choice(urls)


def _read_conninfo(text: str) -> str:
    try:
        sources._check_source(text, asynchronous=False)
    except ValueError as error:
        assert SECRET not in str(error)
        raise
    return text


PARSERS: dict[str, Parser] = {
    "fence": Parser(_fence, str, Fence.parse, (ValueError,), is_exact=True),
    "header": Parser(lambda chance: _read_header(_header(chance)), _written_header, _read_header, (ValueError,)),
    "header at a middleware": Parser(_header, str, _screened),
    "pointer": Parser(_pointer, pointer.encode, lambda data: pointer.decode(data, RESOURCE), (GuardNotEnforceable,)),
    "pointer file": Parser(
        _content, content.Content.encode, lambda data: content.decode(data, "p"), (GuardNotEnforceable,)
    ),
    "key of data": Parser(_key, lambda found: found.key, DataKey.parse, is_exact=True),
    "reply of Redis": Parser(_reply, _packed, _read_replies, (InvalidResponse,)),
    "slots of a Cluster": Parser(_slots, _packed, _read_slots, (RedisError,)),
    "answer of a service": Parser(_refusal, _answered, _read_answer),
    "query of a claims path": Parser(_name, lambda name: str(httpx2.QueryParams({"resource": name})), _read_query),
    "URL of a service": Parser(_url, str, _read_url, (ValueError,)),
    "URI of SQLite": Parser(_file_uri, str, _read_file_uri),
    "URL of PostgreSQL": Parser(_conninfo, str, _read_conninfo, (ValueError,)),
}
"""By name."""
