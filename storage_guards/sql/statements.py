"""The admission rule as SQL: one text for every driver, and one function for each form that databases need. No I/O, and
no driver is known here.

On PostgreSQL and SQLite each verdict is one ``UPDATE … RETURNING`` (or the claim's upsert). It takes the mark's row
lock, compares, and answers in one step. The lock is kept until the transaction ends. Only after a refusal the mark is
read again, for the reason. MariaDB and MySQL have no ``UPDATE … RETURNING``: see :func:`statements_on_mysql`.

On a database that enforces (``enforcement.py``) an application may not change the table. There are functions with the
names of these statements, whose bodies are these very texts. The statements then call the functions.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import NamedTuple

from storage_guards.sql.outcome import FLOOR, REMEMBERED_CHARACTERS, TABLE
from storage_guards.sql.pruning import BATCH
from storage_guards.sql.schema import quoted
from storage_guards.sql.table import DONE

CREATE_LOCK = 7_236_273_601
"""The advisory lock under which PostgreSQL creates tables and functions, because IF NOT EXISTS fails in a race. The
number is arbitrary."""

LOCK_CREATION = f"SELECT pg_advisory_xact_lock({CREATE_LOCK})"

NO_SELECT = (
    "write takes no SELECT; read inside begin(), where what is read is current; call functions that write there, too"
)


_SELECT = re.compile(r"[\s(]*SELECT\b", re.IGNORECASE)
ONE_WRITE = re.compile(r"\s*(INSERT|UPDATE|DELETE|MERGE|WITH|SELECT)\b[^;]*\Z", re.IGNORECASE)


def refuse_select(sql: str) -> None:
    """Raise ValueError for a text that begins with SELECT: it would be counted as a write of the rows that it reads."""
    if _SELECT.match(sql):
        raise ValueError(NO_SELECT)


def is_one_write(sql: str) -> bool:
    """Return whether a text is one statement for sure, of a kind that cannot end a transaction of PostgreSQL or SQLite.

    ``COMMIT AND CHAIN`` and ``ROLLBACK AND CHAIN`` begin a transaction that looks like the one that they have ended.
    """
    return ONE_WRITE.match(sql) is not None


def enforced_in(schema: str) -> str:
    """Return the expression that is true where the schema has the functions. The application's role then has no other
    access to the table."""
    return f"to_regprocedure('{quoted(schema)}.fencing_check(text, bigint, text, text)') IS NOT NULL"


# In a savepoint, a row's xmin is the savepoint's own transaction id, not that of the outer transaction.
_IS_OUTERMOST = "xmin = pg_current_xact_id()::xid"

# Qualified by the table's name, because the upsert needs that.
_REMEMBER = f"substr(CAST({{write}} AS text) || ' ' || {TABLE}.recent_writes, 1, {REMEMBERED_CHARACTERS})"
_ADMITS = (
    f"({TABLE}.number < {{number}} OR ({TABLE}.number = {{number}} AND {TABLE}.token = {{token}})) "
    f"AND {TABLE}.readers < {{number}}"
)


_SECOND = "CAST(floor(extract(epoch FROM done_at)) AS bigint)"
_SECOND_OF_SQLITE = "CAST(strftime('%s', done_at) AS INTEGER)"
_AT_THE_KEY_FLOOR = "kept.resource = {resource} AND kept.once_key = '' AND kept.floor >= {key}"
_LOWEST = (
    "SELECT once_key FROM {done} WHERE resource = {{resource}} AND once_key > '' AND once_key < {{key}} "
    f"ORDER BY once_key LIMIT {BATCH}"
)


class Statements(NamedTuple):
    """Templates of :meth:`str.format`. The fields are ``resource``, ``number``, ``token``, ``write`` (a new random id)
    and ``writes`` (what to add to ``seq``: 1 for a write, 0 for a mere claim). Those of what is done once have ``key``.

    Args:
        check: admits a write. It answers with a row (seq, recent_writes; on PostgreSQL also xact) if the fence is the
            mark's own.
        claim: raises a mark that exists. It answers with such a row if the rule admits the fence.
        first_claim: the same for a mark that may be absent. ``lock_floor`` comes before it.
        lock_floor: answers with a row (number, recent_writes) that no other transaction can change before this one
            ends. No row: there is no floor.
        make_floor: makes the floor where there is none, at ``number``, and with it the table's id, which is the
            ``write``.
        lock_mark: changes nothing, and waits for the transaction that has written the mark. It answers with a row
            (recent_writes) if there is a mark.
        lock_absence: inserts a mark, to be rolled back, and answers with a row if there was none. The insertion waits
            for an open transaction that is about to insert the same mark, which cannot be seen yet.
        read_mark: reads the mark: a row (number, token, seq, recent_writes, readers). It locks nothing, so the mark may
            change at any time.
        read_floor: reads the floor: a row (number, recent_writes). It locks nothing.
        note_done: notes that the key is done. It answers with a row if that was not noted before. A key that is not
            above the floor is not noted: a transaction of the caller's own may be committed all the same.
        read_done: reads what is noted of the key: a row (number, write_id, the second in which it was done).
        key_floor: answers with a row (floor) if the key is not above the highest one that was pruned.
        last_done: reads the highest key among the lowest ones below this one, and how many these are.
        raise_key_floor: raises the floor of the keys to this key.
        delete_done: deletes what is noted of the keys up to this one.
    """

    check: str
    claim: str
    first_claim: str
    lock_floor: str
    make_floor: str
    lock_mark: str
    lock_absence: str
    read_mark: str
    read_floor: str
    note_done: str
    read_done: str
    key_floor: str
    last_done: str
    raise_key_floor: str
    delete_done: str


def digest_of(statement: str) -> str:
    """Return what stands for a statement in the name under which a connection has prepared it.

    A connection knows it by that name alone. Where users choose the names of schemas, two of 32 bits collide easily,
    and one schema's mark would then be checked for another's.
    """
    return sha256(statement.encode()).hexdigest()[:32]


def statements_on(table: str, done: str = DONE, *, postgresql: bool = True, outermost: bool = False) -> Statements:
    """Return the rule's statements on the tables of these names, which may be qualified by a schema.

    On SQLite (``postgresql`` is False) there is one writer at a time: the earlier UPDATE has taken the write lock,
    which covers the floor.

    With ``outermost`` the rows have one more column: whether the check was outside any savepoint. (It adds a tenth to
    the cost of the check.)
    """
    # xact: the transaction that last wrote the mark, for checks inside the database.
    xact, column, value = "", "", ""
    reply, share = "RETURNING seq, recent_writes", ""
    if postgresql:
        xact, column, value = " xact = pg_current_xact_id(),", ", xact", ", pg_current_xact_id()"
        reply, share = "RETURNING seq, recent_writes, xact::text", " FOR SHARE"
        if outermost:
            reply += f", {_IS_OUTERMOST} AS outermost"
    raised = (
        "number = {number}, token = {token}, "
        f"seq = CASE WHEN {TABLE}.number = {{number}} THEN {TABLE}.seq ELSE 0 END + {{writes}},{xact} "
        f"recent_writes = CASE WHEN {{writes}} = 0 THEN {TABLE}.recent_writes ELSE {_REMEMBER} END, "
        "claimed_at = CURRENT_TIMESTAMP"
    )
    return Statements(
        check=(
            f"UPDATE {table} SET{xact} seq = seq + 1, recent_writes = {_REMEMBER} "
            f"WHERE resource = {{resource}} AND number = {{number}} AND token = {{token}} AND readers < {{number}} "
            f"{reply}"
        ),
        claim=f"UPDATE {table} SET {raised} WHERE resource = {{resource}} AND {_ADMITS} {reply}",
        first_claim=(
            f"INSERT INTO {table} (resource, number, token, seq, recent_writes{column}) "
            "SELECT {resource}, {number}, {token}, {writes}, "
            f"CAST({{write}} AS text) || ' ' || floor.recent_writes{value} "
            f"FROM {table} AS floor WHERE floor.resource = '{FLOOR}' AND floor.number < {{number}} "
            f"ON CONFLICT (resource) DO UPDATE SET {raised} WHERE {_ADMITS} {reply}"
        ),
        lock_floor=f"SELECT number, recent_writes FROM {table} WHERE resource = '{FLOOR}'{share}",
        make_floor=(
            f"INSERT INTO {table} (resource, number, token, seq, recent_writes) "
            f"VALUES ('{FLOOR}', {{number}}, '', 0, {{write}}) ON CONFLICT (resource) DO NOTHING"
        ),
        lock_mark=f"UPDATE {table} SET seq = seq WHERE resource = {{resource}} RETURNING recent_writes",
        lock_absence=(
            f"INSERT INTO {table} (resource, number, token, seq) VALUES ({{resource}}, {{number}}, {{token}}, 0) "
            "ON CONFLICT (resource) DO NOTHING RETURNING resource"
        ),
        read_mark=f"SELECT number, token, seq, recent_writes, readers FROM {table} WHERE resource = {{resource}}",
        read_floor=f"SELECT number, recent_writes FROM {table} WHERE resource = '{FLOOR}'",
        # The first column of the answer is a number, as every performer expects it.
        note_done=(
            f"INSERT INTO {done} (resource, once_key, number, write_id) "
            f"SELECT {{resource}}, {{key}}, {{number}}, {{write}} "
            f"WHERE NOT EXISTS (SELECT 1 FROM {done} AS kept WHERE {_AT_THE_KEY_FLOOR}) "
            "ON CONFLICT DO NOTHING RETURNING number"
        ),
        read_done=(
            f"SELECT number, write_id, {_SECOND if postgresql else _SECOND_OF_SQLITE} FROM {done} "
            "WHERE resource = {resource} AND once_key = {key}"
        ),
        key_floor=f"SELECT floor FROM {done} AS kept WHERE {_AT_THE_KEY_FLOOR}",
        last_done=f"SELECT max(once_key), count(*) FROM ({_LOWEST.format(done=done)}) AS lowest",
        raise_key_floor=(
            f"INSERT INTO {done} (resource, once_key, number, floor) VALUES ({{resource}}, '', 0, {{key}}) "
            f"ON CONFLICT (resource, once_key) DO UPDATE "
            f"SET floor = {'greatest' if postgresql else 'max'}({DONE}.floor, excluded.floor)"
        ),
        delete_done=f"DELETE FROM {done} WHERE resource = {{resource}} AND once_key > '' AND once_key <= {{key}}",
    )


# Of MariaDB and MySQL: no row answers a change, so it is the row itself that is read afterwards.

STORE = {"admitted": "@fencing_admitted := ", "seq": "@fencing_seq := ", "recent": "@fencing_recent := "}
"""Assignments by which a change of a mark stores what it has found and written, for a compound statement. To read the
row again takes longer."""

_STORE_NOTHING = dict.fromkeys(STORE, "")
_REMEMBER_MYSQL = f"SUBSTRING(CONCAT({{{{write}}}}, ' ', recent_writes), 1, {REMEMBERED_CHARACTERS})"
_IS_NEWER = "(number < {{number}} AND readers < {{number}})"
_MATCHES = "(number = {{number}} AND token = {{token}} AND readers < {{number}})"
_ADMITS_MYSQL = f"({_IS_NEWER} OR {_MATCHES})"

# MariaDB's mode SIMULTANEOUS_ASSIGNMENT changes nothing: each column is read only before it is assigned.
_RAISE = f"""
    recent_writes = {{recent}}IF({{{{writes}}}} > 0 AND {_ADMITS_MYSQL}, {_REMEMBER_MYSQL}, recent_writes),
    claimed_at = IF({{admitted}}{_ADMITS_MYSQL}, UTC_TIMESTAMP(), claimed_at),
    seq = {{seq}}IF({_ADMITS_MYSQL}, IF(number = {{{{number}}}}, seq, 0) + {{{{writes}}}}, seq),
    token = IF({_IS_NEWER}, {{{{token}}}}, token),
    number = IF({_IS_NEWER}, {{{{number}}}}, number)
"""
_CHECK_MYSQL = f"""
    recent_writes = {{recent}}IF({{admitted}}{_MATCHES}, {_REMEMBER_MYSQL}, recent_writes),
    seq = {{seq}}seq + {_MATCHES}
"""
# The one number of the UPDATE's answer is the new seq where the mark has the writes that the caller has seen, else 0.
# seq comes first, so the comparison reads what was there before.
_IS_AS_SEEN = f"({_MATCHES} AND recent_writes = {{{{recent}}}})"
_CHECK_AS_SEEN = f"""
    seq = seq + IF(LAST_INSERT_ID(IF({_IS_AS_SEEN}, seq + 1, 0)), 1, {_MATCHES}),
    recent_writes = IF({_MATCHES}, {_REMEMBER_MYSQL}, recent_writes)
"""
_MADE = "resource, number, token, seq, recent_writes, claimed_at"


class MySQLStatements(NamedTuple):
    """The rule on MariaDB and MySQL: templates, as :class:`Statements`.

    Args:
        rule: what changes something is sent, and then the mark is read: a locking read of the row is the verdict. The
            number of changed rows is none: it is 0, 1 or 2, depending on the driver's flags. ``resource`` is the name
            in hexadecimal digits, so no character set and no ``sql_mode`` of the session changes it. In ``first_claim``
            there is one more field, ``table``: the table's id.
        read_locked: reads the mark, and locks it.
        stored_check: the check as a change that stores its answer (``STORE``).
        stored_claim: likewise the claim.
        check_as_seen: the check, with the ``recent`` writes that the mark had when it was seen last. If it has them
            still, and the fence is its own, the answer's ``LAST_INSERT_ID`` is its new seq. Otherwise that is 0, and
            the mark must be read. It is not for a transaction of the caller's own, which may ask for its own
            ``LAST_INSERT_ID``.
        is_innodb: the engine is not looked up with each reading.
        make_key_floor: makes the row of the keys' floor where there is none. A locking read of an absent row would lock
            the gap, and so keep blocks of other resources waiting.
    """

    rule: Statements
    read_locked: str
    stored_check: str
    stored_claim: str
    check_as_seen: str
    is_innodb: bool
    make_key_floor: str


def statements_on_mysql(table: str, done: str, schema: str, *, is_innodb: bool) -> MySQLStatements:
    """Return the statements on the tables of these names, which may name a partition, in this schema.

    Each verdict takes two of them. The first takes the mark's row lock, and changes the row only if the rule admits the
    fence. Assignments run from left to right, so a column's old value is used before it is assigned: number comes last.

    The engine is read too, unless it is known: a table of another engine has no transactions, so nothing would be
    locked or rolled back. On MySQL, looking it up takes longer than all the rest of a check.
    """
    engine = (
        "'InnoDB'"
        if is_innodb
        else f"(SELECT engine FROM information_schema.tables "
        f"WHERE table_schema = '{schema}' AND table_name = '{TABLE}')"
    )
    read = (
        f"SELECT number, CONVERT(token USING utf8mb4) AS token, seq, "
        f"CONVERT(recent_writes USING utf8mb4) AS recent_writes, readers, {engine} AS engine "
        f"FROM {table} WHERE resource = UNHEX({{resource}})"
    )
    done_engine = engine.replace(f"'{TABLE}'", f"'{DONE}'")
    read_done = (
        "SELECT number, CONVERT(write_id USING utf8mb4) AS write_id, "
        f"TIMESTAMPDIFF(SECOND, '1970-01-01 00:00:00', done_at) AS second, {done_engine} AS engine FROM {done} "
        "WHERE resource = UNHEX({resource}) AND once_key = UNHEX({key}) FOR UPDATE"
    )
    here = "WHERE resource = UNHEX({resource})"
    changes = (_CHECK_MYSQL, _RAISE, _CHECK_AS_SEEN)
    check, claim, check_as_seen = (f"UPDATE {table} SET {change} {{here}}" for change in changes)
    nothing = "ON DUPLICATE KEY UPDATE seq = seq"
    return MySQLStatements(
        Statements(
            check=check.format(here=here, **_STORE_NOTHING),
            claim=claim.format(here=here, **_STORE_NOTHING),
            first_claim=(
                f"INSERT INTO {table} ({_MADE}) VALUES (UNHEX({{resource}}), {{number}}, {{token}}, {{writes}}, "
                f"CONCAT({{write}}, ' ', {{table}}), UTC_TIMESTAMP()) "
                f"ON DUPLICATE KEY UPDATE {_RAISE.format(**_STORE_NOTHING)}"
            ),
            lock_floor=f"{read} LOCK IN SHARE MODE",
            make_floor=(
                f"INSERT INTO {table} ({_MADE}) "
                f"VALUES (UNHEX({{resource}}), {{number}}, '', 0, {{write}}, UTC_TIMESTAMP()) {nothing}"
            ),
            lock_mark=f"UPDATE {table} SET seq = seq {here}",
            lock_absence=(
                f"INSERT INTO {table} ({_MADE}) "
                f"VALUES (UNHEX({{resource}}), {{number}}, {{token}}, 0, {{write}}, UTC_TIMESTAMP()) {nothing}"
            ),
            read_mark=read,
            read_floor=read,
            note_done=(
                f"INSERT INTO {done} (resource, once_key, number, write_id, done_at) "
                f"SELECT UNHEX({{resource}}), UNHEX({{key}}), {{number}}, {{write}}, UTC_TIMESTAMP() FROM "
                f"(SELECT floor FROM {done} WHERE resource = UNHEX({{resource}}) AND once_key = '') AS kept "
                f"WHERE kept.floor < UNHEX({{key}}) ON DUPLICATE KEY UPDATE number = number"
            ),
            read_done=read_done,
            key_floor=(
                f"SELECT CONVERT(floor USING utf8mb4) FROM {done} "
                f"WHERE resource = UNHEX({{resource}}) AND once_key = '' AND floor >= UNHEX({{key}}) LOCK IN SHARE MODE"
            ),
            last_done=(
                f"SELECT CONVERT(max(once_key) USING utf8mb4), count(*) FROM (SELECT once_key FROM {done} "
                f"WHERE resource = UNHEX({{resource}}) AND once_key > '' AND once_key < UNHEX({{key}}) "
                f"ORDER BY once_key LIMIT {BATCH}) AS lowest"
            ),
            raise_key_floor=(
                f"INSERT INTO {done} (resource, once_key, number, done_at, floor) "
                f"VALUES (UNHEX({{resource}}), '', 0, UTC_TIMESTAMP(), UNHEX({{key}})) "
                f"ON DUPLICATE KEY UPDATE floor = GREATEST(floor, UNHEX({{key}}))"
            ),
            delete_done=(
                f"DELETE FROM {done} "
                f"WHERE resource = UNHEX({{resource}}) AND once_key > '' AND once_key <= UNHEX({{key}})"
            ),
        ),
        f"{read} FOR UPDATE",
        check.format(here=here, **STORE),
        claim.format(here=here, **STORE),
        check_as_seen.format(here=here),
        is_innodb,
        (
            f"INSERT INTO {done} (resource, once_key, number, done_at) "
            f"VALUES (UNHEX({{resource}}), '', 0, UTC_TIMESTAMP()) "
            f"ON DUPLICATE KEY UPDATE number = number"
        ),
    )


_FENCE = "CAST({resource} AS text), CAST({number} AS bigint), CAST({token} AS text)"
_WRITE = f"{_FENCE}, CAST({{write}} AS text)"


def calls_in(schema: str) -> Statements:
    """Return the statements on a database that enforces: calls of the functions in this schema."""
    home = quoted(schema)
    direct = statements_on(f"{home}.{TABLE}", f"{home}.{DONE}")
    return Statements(
        check=f"SELECT * FROM {home}.fencing_check({_WRITE})",
        claim=f"SELECT * FROM {home}.fencing_claim({_WRITE}, CAST({{writes}} AS bigint))",
        first_claim=f"SELECT * FROM {home}.fencing_first_claim({_WRITE}, CAST({{writes}} AS bigint))",
        lock_floor=f"SELECT * FROM {home}.fencing_lock_floor()",
        make_floor=direct.make_floor,  # only the owner may execute it
        lock_mark=f"SELECT * FROM {home}.fencing_lock_mark(CAST({{resource}} AS text))",
        lock_absence=f"SELECT * FROM {home}.fencing_lock_absence({_FENCE})",
        read_mark=direct.read_mark,
        read_floor=direct.read_floor,
        # The application's role may add to what is done, and its blocks do so behind the check.
        note_done=direct.note_done,
        read_done=direct.read_done,
        key_floor=direct.key_floor,
        last_done=direct.last_done,
        raise_key_floor=direct.raise_key_floor,
        delete_done=direct.delete_done,
    )
