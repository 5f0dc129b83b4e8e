"""Rules, each taken out of a copy of the library; a schedule must find it, or a short run."""

from __future__ import annotations

from typing import NamedTuple

from tests.torture.checker import (
    DONE_TWICE,
    FREE_TOO_SOON,
    LATE_HOLDER,
    LOCK_LEFT,
    LONG_WAIT,
    LOST_UPDATE,
    LOWER_NUMBER,
    NO_LEADER,
    STALE_READ,
    SURVIVOR,
    TWO_HOLDERS,
    TWO_SLOTS,
    UNEXPECTED,
    WRONG_DONE,
    WRONG_LANDED,
    WRONG_LEADER,
    WRONG_REFUSAL,
    WRONG_SLOT,
    WRONG_TOO_OLD,
)

__all__ = ["PLANTED", "Planted"]


class Planted(NamedTuple):
    """A fault in the library.

    Args:
        name: the rule that it breaks.
        shown_by: a schedule: see `schedules.py`; or the arguments of a run.
        file: where.
        changes: what is replaced by what; each ``before`` occurs once.
        found_as: rules of the checker, of which one at least must be reported.
    """

    name: str
    shown_by: str | tuple[str, ...]
    file: str
    changes: tuple[tuple[str, str], ...]
    found_as: tuple[str, ...]


STATEMENTS = "storage_guards/sql/statements.py"
ONCE = "storage_guards/sql/once.py"
TERMS = "fencing/election/terms.py"
RUN = ("--seconds", "8", "--seed", "1", "--on", "sqlite", "--kinds")
LEADERS = (*RUN, "stop")
"""Of a run in which nobody disturbs the locks."""
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
    Planted(
        "a number is higher than the one before",
        "one after the other",
        "fencing/redis/lua/common.lua",
        (("redis.call('INCRBY', KEYS[3], text_of(next - counter))", ""),),
        (LOWER_NUMBER,),
    ),
    Planted(
        "a key that is done is not done again (SQL)",
        "one key for both",
        ONCE,
        (("    if noted is None:\n", "    if False:\n"),),
        (DONE_TWICE,),
    ),
    Planted(
        "a key that is done is not done again (psycopg)",
        "one key for both, psycopg",
        ONCE,
        (("    if noted is None:\n", "    if False:\n"),),
        (DONE_TWICE,),
    ),
    Planted(
        "a key that is done is not done again (Redis)",
        "one key for both, in Redis",
        "storage_guards/redis/lua/once.lua",
        (("if before then return {'done', before} end", ""),),
        (DONE_TWICE,),
    ),
    Planted(
        "a key that is done is not done again (objects)",
        "one key for both, published",
        "storage_guards/objects/publishing.py",
        (
            (
                "            if before is not None:\n                raise already",
                "            if before is None is not None:\n                raise already",
            ),
        ),
        (DONE_TWICE,),
    ),
    Planted(
        "a key that was pruned is not done again",
        "keys beside the floor",
        ONCE,
        (("    if floor is not None:\n", "    if False:\n"),),
        (DONE_TWICE,),
    ),
    Planted(
        "AlreadyDone is told only of what was done",
        "keys beside the floor",
        ONCE,
        (("raise TooOld(resource=fence.resource, key=key, floor=floor[0])", "raise already_done(holder, key, 1, 0)"),),
        (WRONG_DONE,),
    ),
    Planted(
        "TooOld is told only of keys at the floor or below it",
        "keys beside the floor",
        STATEMENTS,
        ((' AND kept.floor >= {key}"', '"'),),
        (WRONG_TOO_OLD,),
    ),
    Planted(
        "a slot has one holder (Redis)",
        "both want a slot",
        "fencing/redis/lua/acquire_any.lua",
        (("  if not holders[slot] then\n", "  if true then\n"),),
        (TWO_HOLDERS,),
    ),
    Planted(
        "a token has one slot",
        "both want a slot of a table",
        "fencing/locks/any_slot.py",
        (
            (
                "resource, token = self._resources[slot], new_token()",
                "resource, token = self._resources[slot], globals().setdefault('_TOKEN', new_token())",
            ),
        ),
        (TWO_SLOTS,),
    ),
    Planted(
        "there are no more slots than were asked for",
        "both want a slot",
        "fencing/locks/any_slot.py",
        (
            (
                "for slot in range(count))\n\n\ndef check_slot_options",
                "for slot in range(count + 1))\n\n\ndef check_slot_options",
            ),
        ),
        (WRONG_SLOT,),
    ),
    Planted(
        "a lock with at_least stays taken",
        "lock that outlasts its block",
        "fencing/redis/lua/release_later.lua",
        (("redis.call('SET', KEYS[1], new_token, 'PX', ARGV[3])", "redis.call('DEL', KEYS[1])"),),
        (FREE_TOO_SOON,),
    ),
    Planted(
        "a replica campaigns again behind its term",
        LEADERS,
        TERMS,
        (("    return settings.ttl * random.uniform(SHORTEST_PAUSE, LONGEST_PAUSE)", "    return 3600.0"),),
        (NO_LEADER,),
    ),
    Planted(
        "campaigns go on until they are stopped",
        LEADERS,
        "fencing/election/election.py",
        (
            (
                "            while not self._is_stopped:  # read after the line above\n",
                "            if not self._is_stopped:\n",
            ),
        ),
        (UNEXPECTED,),
    ),
    Planted(
        "SIGTERM ends the process",
        (*RUN, "terminate"),
        "fencing/sigterm.py",
        (("        self.remove()\n        has_worked", "        return\n        has_worked"),),
        (LONG_WAIT,),
    ),
    Planted(
        "an observer sees terms in their order",
        LEADERS,
        TERMS,
        (
            (
                "    return Leader(holder.owner, holder.number, holder.held_for)",
                "    _SEEN.append(Leader(holder.owner, holder.number, None))\n    return random.choice(_SEEN)",
            ),
            ("LEAST_EVERY = 0.01\n", "LEAST_EVERY = 0.01\n_SEEN: list[Leader] = []\n"),
        ),
        (WRONG_LEADER,),
    ),
    Planted(
        "an observer is told who leads",
        LEADERS,
        TERMS,
        (("    return Leader(holder.owner, holder", "    return Leader('1', holder"),),
        (WRONG_LEADER,),
    ),
)
