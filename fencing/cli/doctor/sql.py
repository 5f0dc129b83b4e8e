"""What the doctor says of every SQL database: the library's tables, and settings that all of them have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy import Connection

from fencing.cli.doctor.findings import Finding
from fencing.kernel.errors import GuardNotEnforceable, GuardUnavailable
from fencing.locks.urls import redacted
from fencing.sql import table as lock_table
from fencing.sql.urls import engine_of
from storage_guards import SQLAlchemyGuard
from storage_guards.sql import table as guard_tables

DATABASES = "docs/guards/databases.md#the-table"
RIGHTS = "docs/guards/databases.md#rights-and-migrations"
TIMEOUTS = "docs/guards/databases.md#time-outs"
EARLIER = "docs/operations/incidents.md#tables-of-an-earlier-program"
VERIFICATION = "docs/operations/upkeep.md#verification"
POOLERS = "docs/operations/upkeep.md#poolers"
RESTORE = "docs/operations/upkeep.md#backup-and-restore"
LOCKS = "docs/coordinators/sql.md#the-table"
PRIVILEGES = "docs/coordinators/sql.md#privileges"

MARKS, DONE, LOCK_TABLE = guard_tables.MARK_TABLE.name, guard_tables.DONE, lock_table.TABLE
NEEDED = {MARKS: ("SELECT", "INSERT", "UPDATE"), DONE: ("SELECT", "INSERT"), LOCK_TABLE: ("SELECT", "INSERT", "UPDATE")}
"""The rights on each table. ``prune`` also needs DELETE."""

KNOWN = {MARKS: guard_tables.VERSION, DONE: guard_tables.VERSION, LOCK_TABLE: lock_table.VERSION}
"""The version of each table that this library knows."""

LEAST_SECONDS = 1.0
"""Below this, a time-out of the role ends statements on a busy day."""

Tables = dict[str, dict[str, Any]]
"""By name: schema, version (None: the column is missing), the rights that the role lacks. Empty: there is none."""


def tables(facts: Tables) -> Iterator[Finding]:
    """Yield the findings about the library's tables."""
    if not facts[MARKS] and not facts[LOCK_TABLE]:
        yield Finding(
            "wrong",
            f"there is neither {MARKS} nor {LOCK_TABLE}, or this account has no right on them",
            "Neither guards nor locks work there.",
            "create them, as the owner, or write a migration:\nfencing create-tables URL",
            DATABASES,
        )
        return
    for name, page in ((MARKS, DATABASES), (DONE, "docs/guards/once.md#the-table"), (LOCK_TABLE, LOCKS)):
        fact = facts[name]
        if not fact:
            if name != DONE:  # verify says it of that
                use = "guards" if name == MARKS else "locks"
                yield Finding("ok", f"{name} is not there: no {use} here", page=page)
            continue
        version, schema = fact["version"], fact["schema"]
        if str(version) != str(KNOWN[name]):
            yield Finding(
                "wrong",
                f"{schema}.{name} is of version {version or 'none'}, and this library knows {KNOWN[name]}",
                "This library refuses the table.",
                "upgrade the program if the table is newer; otherwise execute the statements that the refusal names",
                EARLIER,
            )
        elif fact["lacks"]:
            rights, role = ", ".join(fact["lacks"]), fact.get("role", "ROLE")
            yield Finding(
                "wrong",
                f"this account lacks {rights} on {schema}.{name}",
                "Locks need them." if name == LOCK_TABLE else "The guard needs them.",
                f"give them, as the owner:\nGRANT {rights} ON {schema}.{name} TO {role}",
                PRIVILEGES if name == LOCK_TABLE else RIGHTS,
            )
        else:
            yield Finding("ok", f"{schema}.{name} is of version {version}, and this account may use it", page=page)


def is_usable(fact: dict[str, Any]) -> bool:
    """Return whether a guard would use the mark table of these facts. Otherwise there is a finding about it."""
    return bool(fact) and not fact["lacks"] and str(fact["version"]) == str(KNOWN[MARKS])


def verified(url: str) -> Iterator[Finding]:
    """Yield what the guard's own ``verify`` finds."""
    engine = engine_of(url, asynchronous=False)
    try:
        report = SQLAlchemyGuard(engine).verify()
    except GuardNotEnforceable as error:
        yield Finding(
            "wrong",
            str(error),
            "Guards refuse to work there.",
            "do what the message says, and look again:\nfencing verify URL",
            VERIFICATION,
        )
        return
    except GuardUnavailable as error:
        what = f"verify() could not look: {redacted(str(error))}"
        yield Finding("unknown", what, change="look again:\nfencing verify URL", page=VERIFICATION)
        return
    finally:
        engine.dispose()
    for found in report.findings:
        page = POOLERS if "pooler" in found.problem else VERIFICATION
        why = {
            "durability": "" if "may lose" in found.problem else "A crash may lose acknowledged writes.",
            "waiting": "A wait has no bound.",
            "upkeep": "One safeguard of several is missing, or cannot be seen from here.",
        }.get(found.threatens, "")
        yield Finding("warning", found.problem, why, found.change, page)
    if not report.findings:
        yield Finding("ok", "verify() finds nothing wrong", page=VERIFICATION)


def may_lose(what: str) -> Finding:
    """Return the finding that a failover may lose commits."""
    return Finding(
        "warning",
        what,
        "A failover loses the last commits: marks and data alike, and held locks may be free.",
        "set synchronous_standby_names, and synchronous_commit on; or end the leases before a failover",
        RESTORE,
    )


def isolation(level: str, otherwise: str, page: str) -> Finding:
    """Return the finding about the default level, all of which are right. ``otherwise``: what to know of the others."""
    level = level.lower().replace("-", " ")
    return Finding("ok", f"the default isolation is {level}{'' if level == 'read committed' else otherwise}", page=page)


def timeouts(seconds: dict[str, float]) -> Iterator[Finding]:
    """Yield the findings about time-outs of the account, by name. 0 is none."""
    short = [f"{name} is {value:g} s" for name, value in sorted(seconds.items()) if 0 < value < LEAST_SECONDS]
    if short:
        yield Finding(
            "warning",
            ", ".join(short),
            "The guards set bounds of their own. What you do without them, as scripts and migrations, may end early.",
            "set one second or more, or none",
            TIMEOUTS,
        )
    else:
        values = ", ".join(f"{name} {f'{value:g} s' if value else 'none'}" for name, value in sorted(seconds.items()))
        yield Finding("ok", f"time-outs of this account: {values}", page=TIMEOUTS)


def asking(connection: Connection, query: str) -> Callable[[], float]:
    """Return a function that asks for one number."""
    return lambda: float(connection.exec_driver_sql(query).scalar_one())
