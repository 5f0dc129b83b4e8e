"""Rules of docs/internals/safety.md, each taken out of a copy of the library; a schedule must find each."""

from __future__ import annotations

from typing import NamedTuple

from tests.torture.checker import (
    LATE_HOLDER,
    LOCK_LEFT,
    LONG_WAIT,
    LOST_UPDATE,
    STALE_READ,
    SURVIVOR,
    TWO_HOLDERS,
    WRONG_LANDED,
    WRONG_REFUSAL,
)

__all__ = ["PLANTED", "Planted"]


class Planted(NamedTuple):
    """A fault in the library.

    Args:
        name: the rule that it breaks.
        schedule: what shows it: see `schedules.py`.
        file: where.
        changes: what is replaced by what; each ``before`` occurs once.
        found_as: rules of the checker, of which one at least must be reported.
    """

    name: str
    schedule: str
    file: str
    changes: tuple[tuple[str, str], ...]
    found_as: tuple[str, ...]


STATEMENTS = "storage_guards/sql/statements.py"
RESOURCE = 'f"WHERE resource = {{resource}}'
CHECK = f'{RESOURCE} AND number = {{{{number}}}} AND token = {{{{token}}}} AND readers < {{{{number}}}} "'

PLANTED = (
    Planted(
        "a write is checked",
        "late writer",
        STATEMENTS,
        ((CHECK, f'{RESOURCE} "'),),
        (LATE_HOLDER, LOST_UPDATE),
    ),
    Planted(
        "a write needs equality with the mark",
        "forgetful newer holder",
        STATEMENTS,
        ((CHECK, f'{RESOURCE} AND number <= {{{{number}}}} "'),),
        (LATE_HOLDER, LOST_UPDATE),
    ),
    Planted(
        "tokens tell grants of one number apart",
        "late writer with the same number",
        STATEMENTS,
        (
            (CHECK, f'{RESOURCE} AND number = {{{{number}}}} "'),
            (" AND {TABLE}.token = {{token}})) ", ")) "),
        ),
        (LATE_HOLDER, LOST_UPDATE),
    ),
    Planted(
        "a claim on an absent mark is above the floor",
        "prune under an old holder",
        STATEMENTS,
        ((" AND floor.number < {{number}} ", " "),),
        (LATE_HOLDER,),
    ),
    Planted(
        "check and write are atomic",
        "write between check and write",
        "storage_guards/objects/changes.py",
        (
            (
                "Put(scope.directory.pointer, data, seen.condition,",
                "Put(scope.directory.pointer, data, None,",
            ),
        ),
        (LATE_HOLDER, LOST_UPDATE),
    ),
    Planted(
        "a session serves nothing older than the check",
        "session used again",
        "storage_guards/sqlalchemy/base.py",
        (("            session.expire_all()", "            pass"),),
        (STALE_READ, LOST_UPDATE),
    ),
    Planted(
        "continuity: what was acknowledged is still there",
        "restore under a holder",
        "storage_guards/continuity.py",
        (("    since = seq - last.seq\n", "    return\n    since = seq - last.seq\n"),),
        (SURVIVOR,),
    ),
    Planted(
        "landed is never wrong",
        "lost reply to COMMIT",
        "storage_guards/sql/outcome.py",
        (("    if own in now:\n        return True", "    if own in now:\n        return False"),),
        (WRONG_LANDED,),
    ),
    Planted(
        "landed waits for a commit that is under way",
        "COMMIT that arrives late",
        STATEMENTS,
        (
            (
                'lock_mark=f"UPDATE {table} SET seq = seq WHERE resource = {{resource}} RETURNING recent_writes"',
                'lock_mark=f"SELECT recent_writes FROM {table} WHERE resource = {{resource}}"',
            ),
        ),
        (WRONG_LANDED,),
    ),
    Planted(
        "a token is not asked with again behind its release",
        "acquire that arrives late",
        "fencing/redis/client.py",
        (
            (
                "must_undo(call, time.monotonic() - started, interrupted=interrupted)",
                "must_undo(call, call.timeout, interrupted=interrupted)",
            ),
            ("if is_undone and not interrupted and isinstance(error, Exception):", "if False:"),
        ),
        (TWO_HOLDERS,),
    ),
    Planted(
        "a reply has a bound, however many pieces it comes in",
        "dripping reply",
        "fencing/sql/connections.py",
        (("slot.watch(until + GRACE_SECONDS)", "slot.watch(until + 3600)"),),
        (LONG_WAIT,),
    ),
    Planted(
        "a lost reply to a commit is unknown",
        "lost reply to COMMIT",
        "storage_guards/sql/transaction.py",
        (
            (
                "        unknown = self._unknown()\n        if isinstance(error, Exception):",
                '        unknown: BaseException = GuardUnavailable("lost")\n        if isinstance(error, Exception):',
            ),
        ),
        (WRONG_REFUSAL,),
    ),
    Planted(
        "no holding is renewed that no lease refers to",
        "claim without an answer",
        "fencing/locks/plans.py",
        (
            (
                "        elif taking.may_hold:\n",
                "        elif globals().setdefault('_LEFT', []).append(taking):\n",
            ),
        ),
        (LOCK_LEFT,),
    ),
)
