"""What a block of a Redis guard has in hand, sync and async."""

from __future__ import annotations

from typing import Any

from fencing.kernel.effects import Plan
from fencing.kernel.fence import Fence
from storage_guards.redis.commands import Argument, Command, check_parts


class Block:
    """What both transactions share: the writes of a block, gathered in order."""

    def __init__(self, guard: Any, newest: dict[Fence, str]) -> None:
        self._guard = guard
        self._run = guard._run
        self._newest = newest
        self.fences = list(newest)
        self.commands: list[Command] = []
        self._ended = False

    def write(self, *command: Argument) -> None:
        """Add a command to those that are done as the block ends, such as ``write("SET", key, value)``.

        Raises:
            TypeError, ValueError: it is refused, as by the guard's ``write``; the block may go on without it.
            RuntimeError: the block has ended.
        """
        self._check_open()
        check_parts(command, "write('SET', key, value)")
        self._guard._request_of(self.fences, [command])
        self.commands.append(command)

    def end(self) -> None:
        """Refuse what is added later: nothing would send it."""
        self._ended = True

    def _plan_read(self, command: Command) -> Plan[Any]:
        self._check_open()
        check_parts(command, "read('GET', key)")
        return self._guard._plan_read(self._newest, command)  # type: ignore[no-any-return]

    def _check_open(self) -> None:
        if self._ended:
            raise RuntimeError("this transaction has ended; begin another one")
