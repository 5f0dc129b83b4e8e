"""The decorator ``locked``: which lock a call holds, where the lease goes, and what is refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import pytest

from fencing import CoordinatorUnavailable, NotAcquired
from fencing.kernel.errors import NotAcquiredReason
from fencing.locks.locked import locked, locked_async
from tests.support.memory_side import MemorySide


@dataclass
class Order:
    id: int


def adapt(side: MemorySide, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, or a coroutine function that does the same, with the same parameters."""
    if not side.asynchronous:
        return function

    async def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return call


def decorated(side: MemorySide, template: str, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    coordinator = side.coordinator(owner="the decorator")
    wrapped: Callable[..., Any] = coordinator.locked(template, **options)(adapt(side, function))
    return wrapped


CALLS = [
    ("orders:{order_id}", (7,), {}, "orders:7"),
    ("orders:{order_id}", (), {"order_id": 7}, "orders:7"),
    ("orders:{order_id}:{part}", (7,), {}, "orders:7:all"),
    ("orders:{order_id}:{part}", (7, "half"), {}, "orders:7:half"),
    ("orders:{order_id}:{part}", (7,), {"part": "half"}, "orders:7:half"),
    ("orders:{order_id:05d}", (7,), {}, "orders:00007"),
    ("orders:{order_id.id}", (Order(7),), {}, "orders:7"),
    ("orders:{order_id[0]}", ([7],), {}, "orders:7"),
    ("urgent:{urgent}", (7,), {"urgent": True}, "urgent:True"),
    ("orders", (7,), {}, "orders"),
    ("{{orders}}", (7,), {}, "{orders}"),
]


@pytest.mark.parametrize(("template", "args", "kwargs", "resource"), CALLS)
def test_a_call_holds_the_lock_that_its_arguments_name(
    side: MemorySide, template: str, args: tuple[Any, ...], kwargs: dict[str, Any], resource: str
) -> None:
    held = []

    def ship(order_id: Any, part: str = "all", *, urgent: bool = False) -> str:
        held.append(side.holder(resource))
        return f"{order_id}, {part}, {urgent}"

    shipped = side.call(decorated(side, template, ship), *args, **kwargs)
    assert shipped == ship(*args, **kwargs)
    assert held[0].owner == "the decorator"
    assert side.holder(resource) is None


def first(lease: Any, order_id: int, part: str = "all") -> Any:
    return lease, order_id, part


def between(order_id: int, lease: Any, part: str = "all") -> Any:
    return lease, order_id, part


def last(order_id: int, part: str = "all", lease: Any = None) -> Any:
    return lease, order_id, part


def named(order_id: int, part: str = "all", *, lease: Any) -> Any:
    return lease, order_id, part


def with_more(order_id: int, part: str = "all", *, lease: Any, **more: Any) -> Any:
    return lease, order_id, part


@pytest.mark.parametrize("function", [first, between, last, named, with_more])
def test_the_lease_goes_to_the_parameter_of_that_name(side: MemorySide, function: Callable[..., Any]) -> None:
    ship = decorated(side, "orders:{order_id}", function)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]]
    calls = [((7, "x"), {}), ((7,), {"part": "x"}), ((), {"order_id": 7, "part": "x"}), ((7,), {})]
    for args, kwargs in calls:
        lease, order_id, part = side.call(ship, *args, **kwargs)
        assert lease.fence.resource == "orders:7"
        assert (order_id, part) == (7, "x" if "x" in (*args, *kwargs.values()) else "all")
    assert "lease" not in inspect.signature(ship).parameters
    with pytest.raises(TypeError, match="without it"):
        side.call(ship, 7, lease="mine")
    assert side.holder("orders:7") is None


def test_methods(side: MemorySide) -> None:
    class Shop:
        name = "north"

    def ship(self: Any, lease: Any, order_id: int) -> str:
        return f"{self.name} {order_id} {lease.fence.resource}"

    Shop.ship = decorated(side, "{self.name}:{order_id}", ship)  # type: ignore[attr-defined]
    shop: Any = Shop()
    assert side.call(shop.ship, 7) == "north 7 north:7"


def test_options_and_errors_are_those_of_hold(side: MemorySide) -> None:
    calls = []

    def fails(order_id: int, lease: Any) -> None:
        calls.append(lease.remaining())
        raise KeyError(order_id)

    failing = decorated(side, "orders:{order_id}", fails, timeout=0, ttl=30)
    with pytest.raises(KeyError):
        side.call(failing, 7)
    assert 25 < calls[0] <= 30
    assert side.holder("orders:7") is None
    blocking = side.coordinator()
    lease = side.call(blocking.acquire, "orders:7")
    with pytest.raises(NotAcquired):
        side.call(failing, 7)
    side.call(lease.release)
    assert len(calls) == 1


def test_bad_calls_take_no_lock(side: MemorySide) -> None:
    ship = decorated(side, "orders:{order_id}", lambda order_id: order_id)
    with pytest.raises(TypeError, match="order_id"):
        side.call(ship)
    with pytest.raises(ValueError, match="512"):
        side.call(ship, "x" * 600)


def generator(order_id: int) -> Any:
    yield order_id


async def async_generator(order_id: int) -> Any:
    yield order_id


def takes_any(*args: Any, **kwargs: Any) -> None: ...


def takes_leases(*lease: Any) -> None: ...


@pytest.mark.parametrize(
    ("template", "function", "says"),
    [
        ("orders:{number}", first, "{number}, which is no parameter of first; its parameters are order_id, part"),
        ("orders:{}", first, "{}, which is no parameter"),
        ("orders:{lease}", first, "{lease}, which is no parameter"),
        ("orders:{kwargs}", takes_any, "{kwargs}, which is no parameter"),
        ("orders", takes_leases, "cannot be given a lease by *lease"),
        ("orders:{order_id}", generator, "is a generator; use hold() inside it"),
        ("orders:{order_id}", async_generator, "is a generator; use hold() inside it"),
        ("orders", staticmethod(first), "write @staticmethod above @locked(...)"),
        ("orders", classmethod(first), "write @classmethod above @locked(...)"),
        ("orders", Order, "locked decorates a function"),
        ("orders", 7, "locked decorates a function"),
        (None, first, "locked takes a resource such as"),
        (first, first, "not a function; write @coordinator.locked(resource)"),
    ],
)
def test_what_is_refused(side: MemorySide, template: Any, function: Any, says: str) -> None:
    plain = inspect.isfunction(function) and function not in (generator, async_generator)
    with pytest.raises(TypeError) as caught:
        side.coordinator().locked(template)(adapt(side, function) if plain else function)
    assert says in str(caught.value).replace("adapt.<locals>.call", function.__name__ if plain else "")


class StreamingResponse:
    """As Starlette's: its body is read when the function has returned."""


class CSVResponse(StreamingResponse): ...


class FlaskResponse:
    """As Werkzeug's, of which the same class is streamed or not."""

    def __init__(self, is_streamed: bool) -> None:
        self._is_streamed = is_streamed

    @property
    def is_streamed(self) -> bool:
        return self._is_streamed


@pytest.mark.parametrize(
    "stream",
    [generator(1), async_generator(1), StreamingResponse(), CSVResponse(), FlaskResponse(True)],
    ids=lambda stream: type(stream).__name__,
)
def test_a_result_that_is_read_without_the_lock_is_warned_of(side: MemorySide, stream: object) -> None:
    def export() -> object:
        return stream

    coordinator = side.coordinator()
    for decorator in (coordinator.locked("orders"), coordinator.hold("orders")):
        with pytest.warns(RuntimeWarning, match="which is read after the lock has been freed: return a complete"):
            assert side.call(decorator(adapt(side, export))) is stream


class Proxy:
    """An object that asks for its attributes far away."""

    def __getattr__(self, name: str) -> Any:
        raise ConnectionError(name)


def test_no_other_result_is_warned_of_or_asked(side: MemorySide) -> None:
    for result in (None, 7, [1], "text", FlaskResponse(False), Proxy()):
        assert side.call(decorated(side, "orders", lambda result=result: result)) is result


def test_a_constant_resource_is_checked_where_it_is_written(side: MemorySide) -> None:
    for resource, says in (("", "must not be empty"), ("x" * 600, "512")):
        with pytest.raises(ValueError, match=says):
            side.coordinator().locked(resource)(adapt(side, first))
    with pytest.raises(TypeError, match=r"write @coordinator.locked\(resource\)"):
        side.coordinator().locked(first)


def test_a_function_of_the_other_kind_is_refused(side: MemorySide) -> None:
    async def asynchronous() -> None: ...

    def synchronous() -> None: ...

    function: Any = synchronous if side.asynchronous else asynchronous
    with pytest.raises(TypeError, match=f"decorate it with an? {'sync' if side.asynchronous else 'async'} coordinator"):
        side.coordinator().locked("orders")(function)


def test_wrong_options_are_refused_where_it_is_written(side: MemorySide) -> None:
    with pytest.raises(ValueError, match="ttl must be"):
        side.coordinator().locked("orders", ttl=-1)
    with pytest.raises(TypeError, match="did you mean 'ttl'"):
        side.coordinator().locked("orders", tll=1)
    with pytest.raises(ValueError, match="timeout must not be negative"):
        side.coordinator().locked("orders", timeout=-1)


@pytest.mark.parametrize("timeout", [None, 0])
def test_a_call_that_finds_the_lock_busy_is_skipped(side: MemorySide, timeout: float | None) -> None:
    calls: list[str] = []

    def report(day: str) -> str:
        calls.append(day)
        return f"report of {day}"

    skipping = decorated(side, "report:{day}", report, busy="skip", timeout=timeout)
    other = side.call(side.coordinator().acquire, "report:monday")
    assert side.call(skipping, "monday") is None
    assert calls == []
    assert side.call(skipping, "tuesday") == "report of tuesday"
    side.call(other.release)
    assert side.call(skipping, "monday") == "report of monday"
    assert side.holder("report:monday") is None


@pytest.mark.parametrize("timeout", [None, 0])
def test_a_function_says_what_a_call_returns_that_finds_the_lock_busy(side: MemorySide, timeout: float | None) -> None:
    def later(error: NotAcquired) -> str:
        if error.resource == "report:friday":
            raise KeyError(error.resource) from error
        return f"{error.resource} is {error.reason}"

    report = decorated(side, "report:{day}", lambda day: f"report of {day}", busy=later, timeout=timeout)
    others = [side.call(side.coordinator().acquire, f"report:{day}") for day in ("monday", "friday")]
    assert side.call(report, "monday") == "report:monday is held"
    with pytest.raises(KeyError):
        side.call(report, "friday")
    for each in others:
        side.call(each.release)
    assert side.call(report, "monday") == "report of monday"


def test_a_coroutine_function_cannot_say_what_a_busy_lock_means(side: MemorySide) -> None:
    async def later(error: NotAcquired) -> None: ...

    with pytest.raises(TypeError, match="busy must be a plain function"):
        side.coordinator().locked("r", busy=later)


def test_only_the_lock_of_the_call_may_be_busy(side: MemorySide) -> None:
    coordinator = side.coordinator()
    other = side.call(side.coordinator().acquire, "other")

    def sync() -> None:
        with coordinator.hold("other", timeout=0):
            raise AssertionError

    async def asynchronous() -> None:
        async with coordinator.hold("other", timeout=0):
            raise AssertionError

    function: Any = asynchronous if side.asynchronous else sync
    with pytest.raises(NotAcquired) as caught:
        side.call(coordinator.locked("r", busy="skip")(function))
    assert caught.value.resource == "other"
    assert side.holder("r") is None
    side.call(other.release)


def test_a_call_that_fails_otherwise_is_not_skipped(side: MemorySide) -> None:
    coordinator = side.coordinator()
    skipping = coordinator.locked("r", busy="skip")(adapt(side, lambda: None))
    side.cut_off(coordinator)
    with pytest.raises(CoordinatorUnavailable):
        side.call(skipping)


class Refused:
    """The context manager of a hold whose lock is not acquired, for this reason."""

    def __init__(self, reason: Any) -> None:
        self.reason = reason

    def __enter__(self) -> Any:
        raise NotAcquired(resource="r", reason=self.reason, waited=0, replicas=0, waiters=7)

    async def __aenter__(self) -> Any:
        self.__enter__()

    def __exit__(self, *error: object) -> None: ...

    async def __aexit__(self, *error: object) -> None: ...


@pytest.mark.parametrize("reason", get_args(NotAcquiredReason))
def test_a_lock_is_busy_only_where_others_have_it_or_wait_for_it(side: MemorySide, reason: Any) -> None:
    decorate: Any = locked_async if side.asynchronous else locked
    call = decorate(lambda name: Refused(reason), "r", "skip", adapt(side, lambda: "called"))
    asked = decorate(lambda name: Refused(reason), "r", lambda error: error.reason, adapt(side, lambda: "called"))
    if reason in ("held", "full"):
        assert side.call(call) is None
        assert side.call(asked) == reason
    else:
        for each in (call, asked):
            with pytest.raises(NotAcquired):
                side.call(each)


@pytest.mark.parametrize("busy", ["skipped", "", None, True, 0, ["skip"]])
def test_a_wrong_word_for_a_busy_lock_is_refused_where_it_is_written(side: MemorySide, busy: Any) -> None:
    with pytest.raises(ValueError, match='busy must be "raise"'):
        side.coordinator().locked("r", busy=busy)
    with pytest.raises(TypeError, match=r"it is an argument of locked\(\)"):
        side.coordinator().hold("r", busy="skip")


def test_a_re_entrant_function_may_call_itself(side: MemorySide) -> None:
    coordinator = side.coordinator()
    leases: list[Any] = []

    def sync(depth: int, lease: Any) -> None:
        leases.append(lease)
        if depth:
            nested[0](depth - 1)

    async def asynchronous(depth: int, lease: Any) -> None:
        leases.append(lease)
        if depth:
            await nested[0](depth - 1)

    function: Any = asynchronous if side.asynchronous else sync
    nested = [coordinator.locked("r", timeout=5, reentrant=True)(function)]
    side.call(nested[0], 2)
    assert len(leases) == 3
    assert len(set(map(id, leases))) == 1
    assert side.holder("r") is None
