"""The claim and the check of PostgreSQL as functions of a fence's text, for scripts in SQL that have no guard. No I/O.

Their bodies are the guards' own statements (``sql/statements.py``), in the order of the plans of ``sql/plans.py``. So a
script and a guard on the same mark table keep one rule. They run with their caller's rights. On a database that
enforces they call the functions of ``sql/functions.py``, as guards do.

Their names are two of those functions, with other parameters. Like these they tell their version, so a guard refuses
functions of another version.
"""

from __future__ import annotations

from fencing.kernel.fence import MAX_NUMBER, MAX_RESOURCE_BYTES, MAX_TEXT
from storage_guards.continuity import ID_CHARACTERS
from storage_guards.sql.errors import ROUNDS
from storage_guards.sql.outcome import TABLE
from storage_guards.sql.schema import quoted
from storage_guards.sql.statements import calls_in, enforced_in, statements_on
from storage_guards.sql.table import DONE, VERSION, VERSION_MARK

STALE = "XF001"
"""The SQLSTATE of a fence that is not the newest."""

UNCLAIMED = "XF002"
"""The SQLSTATE of a fence that was never claimed here."""

NESTED = "XF003"
"""The SQLSTATE of a claim or a check in a savepoint."""

_PLACES = {
    "resource": "its_resource",
    "number": "its_number",
    "token": "its_token",
    "write": "its_write",
    "writes": "0",
}

_NO_FENCE = """RAISE EXCEPTION 'fencing: this is not the text of a fence (number.token.resource)'
            USING ERRCODE = '22023', HINT = 'Pass FENCING_TOKEN, as fencing run sets it.';"""

# str(fence) quotes each byte that is not safe, and no other one. No backslash: standard_conforming_strings may be off.
_SAFE = "[A-Za-z0-9_.~!$&''()*+,/:;=@-]"
_SAFE_BUT_QUOTED = "%(2[146789A-F]|3[0-9ABD]|4[0-9A-F]|5[0-9AF]|6[1-9A-F]|7[0-9AE])"
_READ = f"""
    IF parts IS NULL OR length($1) > {MAX_TEXT} OR parts[3] !~ '^({_SAFE}|%[0-9A-F]{{2}})+$'
            OR parts[3] ~ '{_SAFE_BUT_QUOTED}' THEN
        {_NO_FENCE}
    END IF;
    its_number := parts[1];
    its_token := parts[2];
    SELECT convert_from(string_agg(
            CASE WHEN left(part[1], 1) = '%' THEN decode(substr(part[1], 2), 'hex')
                ELSE convert_to(part[1], 'UTF8') END, ''::bytea ORDER BY place
        ), 'UTF8') INTO its_resource
        FROM regexp_matches(parts[3], '%[0-9A-F]{{2}}|[^%]+', 'g') WITH ORDINALITY AS found (part, place);
    IF its_number > {MAX_NUMBER} OR its_resource LIKE 'fencing:%'
            OR octet_length(convert_to(its_resource, 'UTF8')) > {MAX_RESOURCE_BYTES} THEN
        {_NO_FENCE}
    END IF;"""

_RETURN = f"""IF NOT answer.outermost THEN
                RAISE EXCEPTION 'fencing: this is in a savepoint, and a rollback to that would drop it'
                    USING ERRCODE = '{NESTED}', HINT = 'Make it the first statement of the transaction, and in psql '
                    'leave ON_ERROR_ROLLBACK off.';
            END IF;
            RETURN its_resource;"""

_STALE = f"""RAISE EXCEPTION 'fencing: the fence of % with the number % is stale: % %',
                quote_literal(its_resource), its_number, {{why}}
                USING ERRCODE = '{STALE}', HINT = 'Stop. A newer holder may have read and written.';"""
_STALE_BY_MARK = _STALE.format(why="greatest(mark.number, mark.readers), 'was admitted'")
_STALE_BY_FLOOR = _STALE.format(why="its_floor.number, 'is the floor of what was pruned'")

_UNCLAIMED = f"""RAISE EXCEPTION 'fencing: the fence of % with the number % was never claimed here',
                quote_literal(its_resource), its_number
                USING ERRCODE = '{UNCLAIMED}', HINT = 'Claim it before anything is read: with fencing_claim, or with '
                'fencing run --guard.';"""


class _Access:
    """The statements on one mark table, as PL/pgSQL, with their values in variables."""

    def __init__(self, schema: str) -> None:
        self._direct = statements_on(f"{quoted(schema)}.{TABLE}", f"{quoted(schema)}.{DONE}", outermost=True)
        self._calls = calls_in(schema)

    def either(self, name: str, into: str, indent: int = 8) -> str:
        """Return the statement that is right for this database. FOUND tells whether it answers with a row."""
        called, direct = (getattr(texts, name).format(**_PLACES) for texts in (self._calls, self._direct))
        lines = ("IF enforces THEN", f"    {called} INTO {into};", "ELSE", f"    {direct} INTO {into};", "END IF;")
        return f"\n{' ' * indent}".join(lines)

    def read_mark(self) -> str:
        """Return the statement that reads the mark."""
        return f"{self._direct.read_mark.format(**_PLACES)} INTO mark;"


def _check(access: _Access) -> str:
    return f"""
        {access.either("check", "answer")}
        IF FOUND THEN
            {_RETURN}
        END IF;
        {access.read_mark()}
        IF NOT FOUND OR mark.token = '' OR greatest(mark.number, mark.readers) < its_number THEN
            {_UNCLAIMED}
        ELSIF (mark.number, mark.token) <> (its_number, its_token) OR mark.readers >= its_number THEN
            {_STALE_BY_MARK}
        END IF;"""


def _claim(access: _Access) -> str:
    return f"""
        {access.either("claim", "answer")}
        IF NOT FOUND THEN
            {access.either("lock_floor", "its_floor", 12)}
            {access.either("first_claim", "answer", 12)}
        END IF;
        IF FOUND THEN
            {_RETURN}
        END IF;
        {access.read_mark()}
        IF FOUND THEN
            IF mark.readers >= its_number OR mark.number > its_number
                    OR (mark.number = its_number AND mark.token <> its_token) THEN
                {_STALE_BY_MARK}
            END IF;
        ELSIF its_floor.number IS NULL THEN
            RAISE EXCEPTION 'fencing: the mark table has lost its floor row, so no new name can be claimed'
                USING ERRCODE = '55000', HINT = 'See docs/operations/upkeep.md, backup and restore.';
        ELSIF its_floor.number >= its_number THEN
            {_STALE_BY_FLOOR}
        END IF;"""


def _function(schema: str, name: str, steps: str, comment: str) -> str:
    """Return the SQL that makes one of them, with its comment."""
    full_name = f"{quoted(schema)}.{name}(text)"
    return f"""CREATE OR REPLACE FUNCTION {full_name} RETURNS text
    LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $fencing$
#variable_conflict use_column
{VERSION_MARK}{VERSION}
DECLARE
    parts text[] := regexp_match($1, '^([1-9][0-9]{{0,15}})[.]([A-Za-z0-9_-]{{22,128}})[.](.+)$');
    its_resource text;
    its_number bigint;
    its_token text;
    its_write text := left(encode(sha256(uuid_send(gen_random_uuid())), 'base64'), {ID_CHARACTERS});
    its_floor record;
    answer record;
    mark record;
    enforces boolean := {enforced_in(schema)};
BEGIN{_READ}
    FOR round IN 1..{ROUNDS} LOOP{steps}
    END LOOP;
    RAISE EXCEPTION 'fencing: the mark of % keeps changing', quote_literal(its_resource)
        USING ERRCODE = '40001', HINT = 'Run the transaction again.';
END
$fencing$;

COMMENT ON FUNCTION {full_name} IS '{comment}';
"""


def _require(schema: str, *, is_named: bool) -> str:
    """Return the statement that fails where there is no mark table of this version, or no clear one."""
    several = f"""
    IF 1 < (
        SELECT count(*) FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
        WHERE relname = '{TABLE}' AND relkind IN ('r', 'p', 'v', 'm', 'f') AND nspname !~ '^pg_(temp|toast)'
    ) THEN
        RAISE EXCEPTION 'there are several mark tables {TABLE} here: name the right one with --schema';
    END IF;"""
    return f"""DO $fencing$
DECLARE
    version text;
BEGIN{"" if is_named else several}
    IF to_regclass('{quoted(schema)}.{TABLE}') IS NULL THEN
        RAISE EXCEPTION 'there is no table {TABLE} in the schema {schema}: make it with fencing create-tables, or '
            'name its schema with --schema';
    END IF;
    SELECT pg_get_expr(adbin, adrelid) INTO version FROM pg_attribute
        JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        WHERE attrelid = '{quoted(schema)}.{TABLE}'::regclass AND attname = 'version' AND NOT attisdropped;
    IF version IS DISTINCT FROM '{VERSION}' THEN
        RAISE EXCEPTION 'the table {TABLE} is of version %, and these functions are for version {VERSION}: print them '
            'with the fencing that its guards use', version;
    END IF;
END
$fencing$;
"""


def functions_of_texts(schema: str, *, is_named: bool, made_by: str) -> str:
    """Return a script that makes ``fencing_claim(text)`` and ``fencing_check(text)`` beside a mark table.

    Each takes the text of a fence, and returns the name of its resource. It raises an exception where the rule refuses
    the fence, so the transaction fails.

    Args:
        schema: of the mark table.
        is_named: whether it was chosen. Else the script refuses where there are several mark tables.
        made_by: the program and its version, for the comments.
    """
    access, made_by = _Access(schema), f"{made_by}, for tables of version {VERSION}"
    claim = _function(
        schema, "fencing_claim", _claim(access), f"Claims a fence, by its text, before anything is read. {made_by}."
    )
    check = _function(
        schema, "fencing_check", _check(access), f"Admits a transaction whose first statement it is. {made_by}."
    )
    return f"""-- fencing_claim(text) and fencing_check(text), for scripts of psql: docs/operations/command-line.md.
-- {made_by}, in the schema {schema}.
-- Run it as the owner of {TABLE}, and again after an upgrade: psql --single-transaction -v ON_ERROR_STOP=1

{_require(schema, is_named=is_named)}
{claim}
{check}"""
