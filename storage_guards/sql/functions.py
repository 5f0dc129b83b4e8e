"""The admission rule as functions of PostgreSQL, for applications that may not change the mark table. No I/O.

They do **not** stop a client that claims with an invented fence on purpose: they admit any number and token. Their
bodies are the guard's own statements, so the rule is one text, and a call gets the statement's answer. They run with
their owner's rights and a search_path of their own, under which no object of the caller is found. Only the
application's role may EXECUTE them, except those that change nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from storage_guards.sql.outcome import FLOOR
from storage_guards.sql.statements import statements_on
from storage_guards.sql.table import FUNCTIONS, VERSION, VERSION_MARK

_PLACES = {"resource": "$1", "number": "$2", "token": "$3", "write": "$4", "writes": "$5"}

# PostgreSQL's format() replaces %1$s by the mark table's full name, and %% by %.
_SQL = statements_on("%1$s", outermost=True)
_IS_NO_FENCE = f"IF $1 = '{FLOOR}' OR $3 = '' THEN RAISE EXCEPTION 'the floor, or an empty token, is no fence'; END IF;"
_ADMITTED = "TABLE (seq bigint, recent_writes text, xact text, outermost boolean)"


class _Function(NamedTuple):
    name: str
    parameters: str
    returns: str
    body: str
    changes: bool = True


def _body(*steps: str) -> str:
    return "BEGIN\n    {}\nEND".format("\n    ".join(step.format(**_PLACES) for step in steps))


_CHECK = _Function(
    "fencing_check",
    "text, bigint, text, text",
    _ADMITTED,
    _body(_IS_NO_FENCE, f"RETURN QUERY {_SQL.check};"),
)

_CLAIM = _Function(
    "fencing_claim",
    "text, bigint, text, text, bigint",
    _ADMITTED,
    _body(_IS_NO_FENCE, f"RETURN QUERY {_SQL.claim};"),
)

_FIRST_CLAIM = _Function(
    "fencing_first_claim",
    "text, bigint, text, text, bigint",
    _ADMITTED,
    _body(
        _IS_NO_FENCE,
        f"PERFORM 1 FROM ({_SQL.lock_floor}) AS floor;",  # the caller may have left that out
        f"RETURN QUERY {_SQL.first_claim};",
    ),
)

_LOCK_FLOOR = _Function(
    "fencing_lock_floor",
    "",
    "TABLE (number bigint, recent_writes text)",
    _body(f"RETURN QUERY {_SQL.lock_floor};"),
)

_LOCK_MARK = _Function(
    "fencing_lock_mark",
    "text",
    "TABLE (recent_writes text)",
    _body(f"RETURN QUERY {_SQL.lock_mark};"),
)

# The insertion is undone at once, because it has not asked the floor. It has waited for other insertions all the same.
_LOCK_ABSENCE = _Function(
    "fencing_lock_absence",
    "text, bigint, text",
    "TABLE (resource text)",
    "DECLARE absent text;\n"
    + _body(
        "BEGIN",
        f"    {_SQL.lock_absence} INTO absent;",
        "    RAISE EXCEPTION USING ERRCODE = 'FE000';",
        "EXCEPTION WHEN SQLSTATE 'FE000' THEN NULL;",
        "END;",
        "RETURN QUERY SELECT absent WHERE absent IS NOT NULL;",
    ),
)

# xact alone would be enough, except after a dump is restored into another server. Transactions are counted anew there,
# so one of them could have the number in a restored mark. So the row must also have been written since this
# transaction began.
_REQUIRE = _Function(
    "fencing_require",
    "text, regclass",
    "void",
    """BEGIN
    IF $1 IS NULL THEN
        RAISE EXCEPTION 'fencing: % is enforced, and the resource of a row that was written is NULL', $2
            USING ERRCODE = '42501', HINT = 'The expression given to enforce() must have a value for each row.';
    END IF;
    PERFORM 1 FROM {marks} WHERE resource = $1 AND xact = pg_current_xact_id() AND age(xmin) <= 0;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'fencing: % is enforced, and this transaction has not passed the check for the resource %',
            $2, quote_literal($1)
            USING ERRCODE = '42501', HINT = 'Write through a guard, with a lease of that resource: guard.begin(lease), '
            'guard.write(lease, ...). In SQL, SELECT * FROM fencing_check(...) first, in the same transaction, as a '
            'statement of its own, outside what is rolled back. For operators: docs/guards/enforcement.md.';
    END IF;
END""".replace("%", "%%").replace("{marks}", "%1$s"),
    changes=False,
)

_REFUSE_TRUNCATE = _Function(
    "fencing_refuse_truncate",
    "",
    "trigger",
    """BEGIN
    RAISE EXCEPTION 'fencing: % is enforced, and TRUNCATE is of no single resource', TG_RELID::regclass
        USING ERRCODE = '42501',
        HINT = 'DELETE the rows under leases of their resources. For operators: docs/guards/enforcement.md.';
END""".replace("%", "%%"),
    changes=False,
)

_ALL = (_CHECK, _CLAIM, _FIRST_CLAIM, _LOCK_FLOOR, _LOCK_MARK, _LOCK_ABSENCE, _REQUIRE, _REFUSE_TRUNCATE)


def _create(function: _Function) -> str:
    """Return the SQL that makes it, inside a DO block with the variables ``home`` (schema), ``marks`` (table) and
    ``app``."""
    name = f"%I.{function.name}({function.parameters})"
    kind, grantee = ("VOLATILE", "quote_ident(app)") if function.changes else ("STABLE", "'PUBLIC'")
    return f"""    EXECUTE format('CREATE OR REPLACE FUNCTION {name}
        RETURNS {function.returns}
        LANGUAGE plpgsql {kind} SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS %L', home, format($body$
#variable_conflict use_column
{VERSION_MARK}{VERSION}
{function.body}
$body$, marks));
    EXECUTE format('REVOKE ALL ON FUNCTION {name} FROM PUBLIC', home);
    EXECUTE format('GRANT EXECUTE ON FUNCTION {name} TO %s', home, {grantee});"""


CREATE_FUNCTIONS = "\n".join(map(_create, _ALL))
assert tuple(function.name for function in _ALL) == FUNCTIONS
