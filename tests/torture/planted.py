"""Rules of docs/internals/safety.md, each taken out of a copy of the library; the run must find it in seconds."""

from __future__ import annotations

from typing import NamedTuple

from tests.torture.checker import LATE_HOLDER, LOCK_LEFT, LOST_UPDATE, STALE_READ, WRONG_LANDED, WRONG_REFUSAL

__all__ = ["PLANTED", "Planted"]


class Planted(NamedTuple):
    """A fault in the library.

    Args:
        name: the rule that it breaks.
        file, before, after: the text that is replaced; ``before`` occurs once.
        found_as: rules of the checker, of which one at least must be reported.
        on: the services of the run.
        kinds: the faults of the run.
        contender: as of `run.torture`.
    """

    name: str
    file: str
    before: str
    after: str
    found_as: tuple[str, ...]
    on: str = "redis,sqlite"
    kinds: str = "flush,flush,stop"
    contender: str = ""


STATEMENTS = "storage_guards/sql/statements.py"
CHECK = '"WHERE resource = {{resource}} AND number = {{number}} AND token = {{token}} {reply}"'
REPLIES = "drop reply postgresql"

PLANTED = (
    Planted(
        "a write is checked",
        STATEMENTS,
        CHECK,
        '"WHERE resource = {{resource}} {reply}"',
        (LATE_HOLDER, LOST_UPDATE),
    ),
    Planted(
        "a write needs equality with the mark",
        STATEMENTS,
        CHECK,
        '"WHERE resource = {{resource}} AND number <= {{number}} {reply}"',
        (LATE_HOLDER, LOST_UPDATE),
        contender="forgetful",
    ),
    Planted(
        "check and write are atomic",
        "storage_guards/objects/changes.py",
        "Put(scope.directory.pointer, data, seen.condition,",
        "Put(scope.directory.pointer, data, None,",
        (LATE_HOLDER, LOST_UPDATE),
        on="redis,objects",
    ),
    Planted(
        "a session serves nothing older than the check",
        "storage_guards/sqlalchemy/base.py",
        "            session.expire_all()",
        "            pass",
        (STALE_READ, LOST_UPDATE),
    ),
    Planted(
        "landed is never wrong",
        "storage_guards/sql/outcome.py",
        "    if own in now:\n        return True",
        "    if own in now:\n        return False",
        (WRONG_LANDED,),
        on="redis,postgresql",
        kinds=REPLIES,
    ),
    Planted(
        "a lost reply to a commit is unknown",
        "storage_guards/sql/transaction.py",
        "        unknown = self._unknown()\n        if isinstance(error, Exception):",
        '        unknown: BaseException = GuardUnavailable("lost")\n        if isinstance(error, Exception):',
        (WRONG_REFUSAL,),
        on="redis,postgresql",
        kinds=REPLIES,
    ),
    Planted(
        "no holding is renewed that no lease refers to",
        "fencing/locks/plans.py",
        "        elif taking.may_hold:\n            yield Shielded(give_back(backend, resource, taking, settings))",
        "        elif taking.may_hold:\n            globals().setdefault('_LEFT', []).append(taking)",
        (LOCK_LEFT,),
        on="redis,postgresql",
        kinds="cut postgresql,drop request postgresql,kill postgresql",
    ),
)
