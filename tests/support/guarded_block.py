"""A guarded block that a story runs step by step, the same for sync and async and for each kind of guard."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from fencing.testing.contract import CALL_SECONDS, _shared_loop

Row = tuple[Any, ...]


class Dialect(Protocol):
    """How a guard takes its SQL."""

    is_psycopg: bool

    def statement(self, sql: str, **values: Any) -> tuple[Any, Any]: ...


class Block:
    """What a story sees of the block: SQL in, rows out."""

    def __init__(self, dialect: Dialect, run: Callable[[Callable[[Any], Any]], Any]) -> None:
        self._dialect, self._run = dialect, run

    def call(self, function: Callable[[Any], Any]) -> Any:
        """Call a function of the connection inside the block; await what it returns where that is needed."""
        return self._run(function)

    def execute(self, sql: str, **values: Any) -> list[Row]:
        statement, parameters = self._dialect.statement(sql, **values)
        result = self.call(lambda connection: connection.execute(statement, parameters))
        if not self._dialect.is_psycopg:
            return [tuple(row) for row in result.all()] if result.returns_rows else []
        return self.call(lambda _: result.fetchall()) if result.description else []

    def scalar(self, sql: str, **values: Any) -> Any:
        [[value]] = self.execute(sql, **values)
        return value

    def executes_in_a_savepoint(self, sql: str) -> None:
        """Execute it in a savepoint, which an error rolls back."""
        statement, parameters = self._dialect.statement(sql)

        def nested(connection: Any) -> Any:
            return connection.transaction() if self._dialect.is_psycopg else connection.begin_nested()

        def execute(connection: Any) -> Any:
            context = nested(connection)
            if not hasattr(context, "__aenter__"):
                with context:
                    connection.execute(statement, parameters)
                return None

            async def execute_async() -> None:
                async with context:
                    await connection.execute(statement, parameters)

            return execute_async()

        self.call(execute)


class SyncBlock:
    """Runs a block in the thread of the story."""

    def __init__(self, dialect: Dialect, context: Any) -> None:
        self._dialect, self._context = dialect, context

    def __enter__(self) -> Block:
        connection = self._context.__enter__()
        return Block(self._dialect, lambda function: function(connection))

    def __exit__(self, *error: Any) -> Any:
        return self._context.__exit__(*error)


class AsyncBlock:
    """Runs a block as one task of the suites' loop; the story's thread sends it what to do."""

    def __init__(self, dialect: Dialect, context: Any) -> None:
        self._dialect, self._context = dialect, context
        self._steps: asyncio.Queue[tuple[Callable[[Any], Any] | None, Any]] = asyncio.Queue()
        self._entered: Future[None] = Future()

    def __enter__(self) -> Block:
        self._ended = asyncio.run_coroutine_threadsafe(self._live(), _shared_loop())
        self._entered.result(CALL_SECONDS)
        return Block(self._dialect, self._send)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        self._put(None, error)
        raised = self._ended.result(CALL_SECONDS)
        if raised is not None and raised is not error:
            raise raised
        return error is not None and raised is None

    def _send(self, function: Callable[[Any], Any]) -> Any:
        answer: Future[Any] = Future()
        self._put(function, answer)
        return answer.result(CALL_SECONDS)

    def _put(self, function: Callable[[Any], Any] | None, other: Any) -> None:
        _shared_loop().call_soon_threadsafe(self._steps.put_nowait, (function, other))

    async def _live(self) -> BaseException | None:
        """Return what the block raised: a future would pass on a copy of some errors."""
        try:
            async with self._context as connection:
                self._entered.set_result(None)
                error = await self._steps_on(connection)
                if error is not None:
                    raise error
        except BaseException as error:  # noqa: BLE001 - the story's thread raises it
            if not self._entered.done():
                self._entered.set_exception(error)
            return error
        return None

    async def _steps_on(self, connection: Any) -> BaseException | None:
        while True:
            function, other = await self._steps.get()
            if function is None:
                ending: BaseException | None = other
                return ending
            try:
                result = function(connection)
                other.set_result(await result if inspect.isawaitable(result) else result)
            except BaseException as error:  # noqa: BLE001 - the story sees it, and may swallow it
                other.set_exception(error)
