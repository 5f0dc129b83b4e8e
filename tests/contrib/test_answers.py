"""Which errors of a lock a request is answered with "try later", and which ones are raised."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import pytest

from fencing import CoordinatorUnavailable, Fence, GuardUnavailable, LeaseLost, NotAcquired
from fencing.contrib.answers import Answers
from storage_guards.http.header import GATE_KEY

FENCE = Fence("orders:42", 7, "a" * 22)


def not_acquired(**options: Any) -> NotAcquired:
    return NotAcquired(**{"resource": "orders:42", "reason": "held", "waited": 2.0, "owner": "host-7:1", **options})


def unavailable(**options: Any) -> CoordinatorUnavailable:
    return CoordinatorUnavailable("redis at 10.0.0.7 is away", resource="orders:42", **options)


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (not_acquired(), 409, "busy"),
        (not_acquired(reason="full", waiters=9), 409, "busy"),
        (not_acquired(reason="late"), 409, "busy"),
        (not_acquired(held_by_this="process"), 409, "busy"),
        (not_acquired(slots=4), 409, "busy"),
        (not_acquired(reason="superseded"), 503, "unavailable"),
        (not_acquired(reason="unreplicated", replicas=0), 503, "unavailable"),
        (unavailable(), 503, "unavailable"),
    ],
)
def test_a_request_without_its_lock_is_told_to_try_later(error: Exception, status: int, kind: str) -> None:
    answer = Answers(409, 7).answer(error, {})
    assert answer is not None
    headers = dict(answer.headers)
    assert (answer.status, json.loads(answer.body)["type"]) == (status, f"urn:fencing:{kind}")
    assert (headers["Retry-After"], headers["Content-Type"]) == ("7", "application/problem+json")
    assert not any(name in answer.body for name in (b"orders:42", b"host-7", b"10.0.0.7"))


@pytest.mark.parametrize("away", [unavailable(), GuardUnavailable("PostgreSQL is away", resource="orders:42")])
def test_the_log_says_what_is_away(away: Exception, caplog: pytest.LogCaptureFixture) -> None:
    answer = Answers(409, 7).answer(away, {})
    assert answer is not None
    assert (answer.status, "Retry-After" in dict(answer.headers)) == (503, True)
    [record] = caplog.records
    assert (record.levelname, str(away) in record.message) == ("WARNING", True)


@pytest.mark.parametrize(
    "error",
    [
        unavailable(refused=True),
        not_acquired(held_by_this="task"),
        not_acquired(held_by_this="thread"),
        LeaseLost(fence=FENCE, reason="expired"),
        KeyError("of the handler"),
    ],
)
def test_what_no_retry_helps_is_raised(error: Exception) -> None:
    assert Answers(409, 7).answer(error, {}) is None


def test_behind_a_gate_nothing_says_retry() -> None:
    for error in (not_acquired(), unavailable(), GuardUnavailable("PostgreSQL is away", resource="orders:42")):
        assert Answers(409, 7).answer(error, {GATE_KEY: True}) is None


@pytest.mark.parametrize(
    ("busy", "retry_after", "error", "says"),
    [
        (200, 1, ValueError, "busy must be the status of an error"),
        (600, 1, ValueError, "busy must be the status of an error"),
        ("409", 1, TypeError, "busy must be a whole number, not str"),
        (503, -1, ValueError, "retry_after must be seconds from now"),
        (503, 0.5, TypeError, "retry_after must be a whole number, not float"),
        (503, True, TypeError, "retry_after must be a whole number, not bool"),
    ],
)
def test_wrong_arguments(busy: Any, retry_after: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Answers(busy, retry_after)


@pytest.mark.parametrize("framework", ["starlette", "flask"])
def test_a_framework_that_is_missing_is_named(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == framework]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, f"fencing.contrib.{framework}", raising=False)
    monkeypatch.setitem(sys.modules, framework, None)
    with pytest.raises(ModuleNotFoundError, match=f"needs {framework}, which is not installed: pip install"):
        importlib.import_module(f"fencing.contrib.{framework}")
