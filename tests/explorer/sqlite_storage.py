"""The real SQLAlchemyGuard on a real SQLite file, put into a state before each operation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, event, text

from fencing.kernel.errors import StaleFence, UnclaimedFence
from fencing.kernel.fence import Mark
from storage_guards import SQLAlchemyGuard
from storage_guards.sql.outcome import FLOOR
from tests.explorer.storage import (
    RESOURCE,
    Accepted,
    Answer,
    ClaimOperation,
    Operation,
    Refused,
    Storage,
    Value,
    WriteOperation,
)

__all__ = ["SQLiteBackend"]

_SET_FLOOR = text("UPDATE fencing_marks SET number = :floor WHERE resource = :resource")
_CLEAR_MARK = text("DELETE FROM fencing_marks WHERE resource = :resource")
_SET_MARK = text("INSERT INTO fencing_marks (resource, number, token, seq) VALUES (:resource, :number, :token, :seq)")
_SET_VALUE = text("UPDATE account SET updates = :updates")
_GET_VALUE = text("SELECT updates FROM account")


class SQLiteBackend:
    """A claim, and a checked write, each as a transaction of its own: how a lock with ``guards=[guard]`` uses it."""

    def __init__(self, path: Path) -> None:
        self._engine = create_engine(f"sqlite:///{path}")
        event.listen(self._engine, "connect", _without_syncing)
        self._guard = SQLAlchemyGuard(self._engine)
        self._guard.create_tables()
        with self._engine.begin() as connection:
            connection.execute(text("CREATE TABLE account (updates TEXT NOT NULL)"))
            connection.execute(text("INSERT INTO account VALUES ('[]')"))

    def run(self, storage: Storage, operation: Operation) -> tuple[Storage, Answer]:
        self._load(storage)
        try:
            if isinstance(operation, ClaimOperation):
                self._guard.claim(operation.fence)
            else:
                self._write(operation)
        except (StaleFence, UnclaimedFence) as refusal:
            assert self._stored(storage) == storage, "what was refused has changed nothing"
            return storage, Refused(refusal.mark, getattr(refusal, "floor", None))
        return self._stored(storage), Accepted()

    def close(self) -> None:
        self._engine.dispose()

    def _write(self, write: WriteOperation) -> None:
        assert write.seq is None, "a transaction is ordered by the mark's row lock"
        assert write.form in ("guarded", "claiming")
        with self._guard.begin(write.fence, claim=write.form == "claiming") as connection:
            connection.execute(_SET_VALUE, {"updates": _text_of(write.base | {write.update})})

    def _load(self, storage: Storage) -> None:
        mark = storage.mark
        self._guard._continuity._fences.clear()  # the next state may be an earlier one, as after a restore
        with self._engine.begin() as connection:
            connection.execute(_SET_FLOOR, {"floor": storage.floor, "resource": FLOOR})
            connection.execute(_CLEAR_MARK, {"resource": RESOURCE})
            if mark is not None:
                values: dict[str, Any] = {"number": mark.number, "token": mark.token, "seq": mark.seq}
                connection.execute(_SET_MARK, {"resource": RESOURCE, **values})
            connection.execute(_SET_VALUE, {"updates": _text_of(storage.value)})

    def _stored(self, before: Storage) -> Storage:
        with self._engine.connect() as connection:
            updates = json.loads(connection.execute(_GET_VALUE).scalar_one())
        mark: Mark | None = self._guard.mark(RESOURCE)
        return before._replace(mark=mark, value=frozenset((client, index) for client, index in updates))


def _text_of(value: Value) -> str:
    return json.dumps(sorted(value))


def _without_syncing(connection: Any, _: Any) -> None:
    connection.execute("PRAGMA synchronous = OFF")  # no power fails here
