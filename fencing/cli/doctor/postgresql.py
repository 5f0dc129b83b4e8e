"""PostgreSQL, as the doctor sees it."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from typing import Any

from sqlalchemy import Connection

from fencing.cli.doctor.findings import Finding, clock, measured_offset
from fencing.cli.doctor.sql import (
    DATABASES,
    MARKS,
    NEEDED,
    RESTORE,
    VERIFICATION,
    Tables,
    asking,
    isolation,
    may_lose,
    timeouts,
)

ISOLATION = "docs/guards/databases.md#isolation-levels"
ENFORCED = "docs/guards/enforcement.md#set-up"

_OLDEST_POSTGRESQL, _OLD_POSTGRESQL = 13, 14
_POSTGRESQL = """
SELECT json_build_object(
    'version', current_setting('server_version'),
    'number', current_setting('server_version_num')::int / 10000,
    'role', current_user,
    'isolation', current_setting('default_transaction_isolation'),
    'read_only', current_setting('default_transaction_read_only'),
    'is_standby', pg_is_in_recovery(),
    'timeouts', (SELECT json_object_agg(name, setting::bigint) FROM pg_settings WHERE name IN (
        'statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')),
    'synchronous_commit', current_setting('synchronous_commit'),
    'standby_names', current_setting('synchronous_standby_names'),
    'standbys', (SELECT count(*) FROM pg_stat_replication),
    'tables', (SELECT json_agg(json_build_object(
        'name', relname,
        'schema', nspname,
        'role', current_user,
        'version', (
            SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef JOIN pg_attribute ON attrelid = adrelid
            AND attnum = adnum WHERE adrelid = pg_class.oid AND attname = 'version'),
        'lacks', (
            SELECT COALESCE(json_agg(one), '[]') FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE']) AS one
            WHERE NOT has_table_privilege(pg_class.oid, one)),
        'enforced', relname = 'fencing_marks' AND EXISTS (
            SELECT FROM pg_proc WHERE proname = 'fencing_check' AND pronamespace = pg_namespace.oid
            AND oidvectortypes(proargtypes) = 'text, bigint, text, text'),
        'may_check', (SELECT bool_and(has_function_privilege(pg_proc.oid, 'EXECUTE')) FROM pg_proc
            WHERE proname = 'fencing_check' AND pronamespace = pg_namespace.oid
            AND oidvectortypes(proargtypes) = 'text, bigint, text, text')
    )) FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE relname IN ('fencing_marks', 'fencing_done', 'fencing_locks') AND relkind IN ('r', 'p', 'v', 'm', 'f')
    AND has_schema_privilege(pg_namespace.oid, 'USAGE'))
)::text
"""
# Only names in lower case need no quotes, so role and schema are shown as they are.


def examine(connection: Connection) -> Generator[Finding, None, Tables]:
    """Yield the findings about the server. Return the facts about the tables."""
    facts = json.loads(connection.exec_driver_sql(_POSTGRESQL).scalar_one())
    number = facts["number"]
    version = f"PostgreSQL {facts['version']}"
    if number < _OLDEST_POSTGRESQL:
        yield Finding("wrong", version, "The tables need types of PostgreSQL 13.", "use 14 or later", DATABASES)
    elif number < _OLD_POSTGRESQL:
        why = "It does not notice that a client has left in the middle of a statement."
        yield Finding("warning", version, why, "use 14 or later", DATABASES)
    else:
        yield Finding("ok", version, page=DATABASES)
    yield from _role(facts)
    yield from timeouts({name: milliseconds / 1000 for name, milliseconds in facts["timeouts"].items()})
    yield clock(*measured_offset(asking(connection, "SELECT extract(epoch FROM clock_timestamp())")))
    found: Tables = {name: {} for name in NEEDED}
    for each in facts["tables"] or []:
        each["lacks"] = [right for right in each["lacks"] if right in NEEDED[each["name"]]]
        if each["enforced"] and each["may_check"]:
            yield Finding("ok", f"{each['schema']}.{MARKS} is enforced, and this role may check", page=ENFORCED)
            each["lacks"] = []
        found[each["name"]] = each
    return found


def _role(facts: dict[str, Any]) -> Iterator[Finding]:
    if facts["is_standby"]:
        yield Finding(
            "wrong", "this server is a standby", "It takes no writes.", "connect to the primary", VERIFICATION
        )
    elif facts["read_only"] == "on":
        yield Finding(
            "wrong",
            "transactions of this role are read only",
            "Locks and guards write.",
            f"choose another role, or let it write:\nALTER ROLE {facts['role']} RESET default_transaction_read_only",
            VERIFICATION,
        )
    if facts["standbys"] and not facts["standby_names"]:
        yield may_lose(f"{facts['standbys']} standbys follow, and synchronous_standby_names is empty")
    elif facts["standby_names"] and facts["synchronous_commit"] in ("local", "off"):
        yield may_lose(f"synchronous_commit is {facts['synchronous_commit']}, so no commit waits for a standby")
    elif facts["standby_names"]:
        what = f"commits wait for {facts['standby_names']} (synchronous_commit {facts['synchronous_commit']})"
        yield Finding("ok", what, page=RESTORE)
    yield isolation(facts["isolation"], ": some blocks must be begun again", ISOLATION)
