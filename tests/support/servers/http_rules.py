"""What an HTTP proxy does with the requests that a predicate picks."""

import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

CONDITIONS = ("if-match", "if-none-match", "x-goog-if-generation-match", "x-goog-if-metageneration-match")

_HELD = 300.0
"""Seconds after which what nobody released passes."""


class Request(NamedTuple):
    method: str
    path: str
    """With the query, percent-encoded, as it was sent."""
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def conditional(self) -> bool:
        return any(name in self.headers for name in CONDITIONS)


class Reply(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes


Predicate = Callable[[Request], bool]


class Exchange(Protocol):
    """One request, and what can become of it."""

    @property
    def request(self) -> Request: ...
    def forward(self) -> Reply: ...
    def reply(self, reply: Reply) -> None: ...
    def cut(self) -> None: ...


class Rule:
    """Something that was asked for. `fired`: how often it has happened, counted before the client can notice."""

    def __init__(self, predicate: Predicate, act: Callable[["Rule", "Exchange"], None], times: int | None) -> None:
        self._predicate = predicate
        self.act = act
        self._left = times
        self._happened = threading.Condition()
        self.fired = 0

    def wait(self, timeout: float, *, times: int = 1) -> bool:
        """Whether it has happened `times` times, within `timeout` seconds."""
        with self._happened:
            return self._happened.wait_for(lambda: self.fired >= times, timeout)

    def takes(self, request: Request) -> bool:
        """Under the proxy's lock: whether this rule is for `request`; if so, one of its times is used up."""
        if self._left == 0 or not self._predicate(request):
            return False
        if self._left is not None:
            self._left -= 1
        return True

    def fire(self) -> None:
        with self._happened:
            self.fired += 1
            self._happened.notify_all()


class Hold(Rule):
    """Requests that wait in the proxy, whether their clients still do or not. `fired`: how many have come."""

    def __init__(self, predicate: Predicate, times: int | None) -> None:
        super().__init__(predicate, self._hold, times)
        self._released = threading.Event()
        self.statuses: list[int] = []
        """What the server said to those that were passed on, in the end."""

    def release(self) -> None:
        """Pass on what is held, and from now on everything at once."""
        self._left = 0
        self._released.set()

    def wait_landed(self, timeout: float, *, times: int = 1) -> bool:
        """Whether the server has answered `times` of them, within `timeout` seconds."""
        with self._happened:
            return self._happened.wait_for(lambda: len(self.statuses) >= times, timeout)

    def _hold(self, _: Rule, exchange: "Exchange") -> None:
        self.fire()
        self._released.wait(_HELD)
        reply = exchange.forward()
        with self._happened:
            self.statuses.append(reply.status)
            self._happened.notify_all()
        exchange.reply(reply)
