"""The plans of a SQL coordinator, and its real statements on a real SQLite file, put into a state before each request.

To the explorer they look like a Redis: a request is a call whose script is the operation, and the row is a key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, event, text

from fencing.kernel.effects import Plan
from fencing.kernel.retry import Answer
from fencing.locks.settings import Settings
from fencing.redis.calls import Call, Form
from fencing.redis.scripts import Script
from fencing.sql.plans import SQLPlans
from fencing.sql.statements import SQLiteLocks
from fencing.sql.table import TABLE, LockRow, Renewals, Request
from tests.explorer.clients import Polls
from tests.explorer.simulated_redis import Entry, Reply, SimulatedRedis, Snapshot
from tests.explorer.state import KEYS, Scenario
from tests.explorer.storage import RESOURCE

__all__ = ["ClockedLocks", "SQLPolls", "for_sql", "locks_on_sqlite", "polls"]

ROW = "row"
TTL = 10_000_000

_NAMES = {"force": "force_release"}
_SCRIPTS: dict[str, Script] = {}


class SQLPolls(SQLPlans):
    """The plans of a waiter that polls. Each request is a call of the explorer."""

    plan_queue = None  # type: ignore[assignment]
    clock_floor = True

    def plan_until_answered(
        self,
        attempt: Callable[[float, bool], Request],
        about: str,
        settings: Settings,
        deadline: float,
        **options: Any,
    ) -> Plan[Answer]:
        request: Any = None

        def call(timeout: float, last: bool) -> Call:
            nonlocal request
            request = attempt(timeout, last)
            name = _NAMES.get(request.operation, request.operation)
            script = _SCRIPTS.setdefault(name, Script(name, "", "", b"", b"", frozenset()))
            args = tuple(each for item in sorted(request.values.items()) for each in item)
            return Call(Form(script, (), args, b"", b""), None, timeout, last)

        answer: Answer = yield from super().plan_until_answered(call, about, settings, deadline, **options)
        return answer._replace(value=_value(request, answer.value))


def _value(request: Request, reply: Any) -> Any:
    """Return what the connection would have returned."""
    if request.operation == "release":
        return bool(reply)
    if request.operation == "renew":
        return Renewals(set(zip(reply[1::3], reply[2::3], reply[3::3], strict=True)), set())
    if isinstance(reply, bytes):
        return LockRow(0, int(reply), request.values["token"], "", 0, 1)
    return LockRow(*reply[1:])


class ClockedLocks(SQLiteLocks):
    """The statements, by a clock that the explorer sets."""

    clock = "(SELECT us FROM clock)"


def polls(scenario: Scenario) -> bool:
    """Return whether SQLite can stand in for the server: the clients poll for one lock, at the simulated Redis."""
    polling = all(program.plans is Polls and not program.both for program in scenario.programs)
    return polling and scenario.redis is SimulatedRedis


def for_sql(scenario: Scenario, server: Any) -> Scenario:
    """Return the scenario with the plans of SQL locks.

    Args:
        scenario: one that :func:`polls`.
        server: of :func:`locks_on_sqlite`.
    """
    programs = tuple(replace(program, plans=SQLPolls, clock_floor=True) for program in scenario.programs)  # type: ignore[arg-type]
    return replace(scenario, name=f"SQL: {scenario.name}", programs=programs, redis=server)


def locks_on_sqlite(path: Path, kind: type[ClockedLocks] = ClockedLocks, *, moves: bool = True) -> Any:
    """Return the class that stands for the server, in the place of :class:`SimulatedRedis`.

    Args:
        path: of the file.
        kind: the statements.
        moves: whether its clock is that of the state. If not, it goes back whenever the data is lost.
    """
    engine = create_engine(f"sqlite:///{path}", isolation_level="AUTOCOMMIT")
    event.listen(engine, "connect", _without_syncing)
    locks = kind(None, engine.dialect)
    connection = engine.connect()
    locks.perform(connection, Request("create", {}, 1.0))
    connection.execute(text("CREATE TABLE clock (us INTEGER NOT NULL)"))
    connection.execute(text("INSERT INTO clock VALUES (0)"))

    class OnSQLite:
        excludes = True

        def __init__(self, snapshot: Snapshot) -> None:
            self.published: list[Any] = []
            self._before = snapshot
            self._clock = snapshot.clock_us if moves else 1
            redis = SimulatedRedis(snapshot)
            found, earlier, held = redis.get(ROW), redis.get(KEYS.counter), redis.get(KEYS.lock) is not None
            connection.execute(text("UPDATE clock SET us = :us"), {"us": self._clock})
            connection.execute(text(f"DELETE FROM {TABLE}"))
            if found is not None:
                number, token = found.decode().split(" ")
                self._insert(int(number), token, self._clock + TTL if held else self._clock)
            elif earlier is not None:
                self._insert(int(earlier), "", 0)

        def _insert(self, number: int, token: str, expires_at: int) -> None:
            connection.execute(
                text(
                    f"INSERT INTO {TABLE} (resource, number, token, owner, granted_at, expires_at, ttl) "
                    f"VALUES (:resource, :number, :token, 'explorer', 0, :expires_at, {TTL})"
                ),
                {"resource": RESOURCE, "number": number, "token": token, "expires_at": expires_at},
            )

        def run(self, name: str, keys: Sequence[str], args: Sequence[Any]) -> Reply:
            operation: Any = {"force_release": "force"}.get(name, name)
            values = dict(zip(args[::2], args[1::2], strict=True))
            answer = locks.perform(connection, Request(operation, values, 1.0))
            if operation == "release":
                return int(answer)
            if operation == "renew":
                return (b"renewed", *(each for grant in sorted(answer.renewed) for each in grant))
            if answer.is_held and answer.token == values.get("token"):
                return b"%d" % answer.number
            return (b"taken" if operation == "acquire" else b"row", *answer)

        def snapshot(self) -> Snapshot:
            row: LockRow = locks.perform(connection, Request("read", {"resource": RESOURCE}, 1.0))
            entries = []
            if row.number is not None:
                entries.append(Entry(ROW, f"{row.number} {row.token}".encode(), None))
            if row.is_held:
                entries.append(Entry(KEYS.lock, row.token.encode(), None))
            entries.sort(key=lambda entry: entry.key)
            return Snapshot(tuple(entries), self._before.clock_us, self._before.listening)

        @staticmethod
        def close() -> None:
            connection.close()
            engine.dispose()

    return OnSQLite


def _without_syncing(connection: Any, _: Any) -> None:
    connection.execute("PRAGMA synchronous = OFF")  # no power fails here
