"""What one Redis server tells about itself, and what follows from it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from fencing.cli.doctor.findings import Finding, NotExamined, clock, measured_offset
from fencing.locks.urls import redacted

CHECKLIST = "docs/coordinators/redis.md#checklist-for-operators"
PERSISTENCE = "docs/coordinators/redis.md#persistence-and-its-price"
SENTINEL = "docs/coordinators/redis.md#sentinel"
VALKEY = "docs/coordinators/redis.md#valkey-and-other-services"
WRONG_SETTINGS = "docs/coordinators/redis.md#wrong-settings"
PERMISSIONS = "docs/coordinators/redis.md#permissions"

OLDEST = (6, 2)
NEWEST_TRIED = 8
VALKEY_TRIED = (9, 1)

FULL = 0.9
"""From which share of maxmemory on there is a warning."""

MOST_KEYS = 20_000
MOST_SECONDS = 2.0
"""How many keys are read to find those of others, and for how long."""

_HOLDER = re.compile(rb"fencing:1:\{[0-9]+\}:holder:(.*)", re.DOTALL)
_MARK = re.compile(rb"fencing:1:\{[0-9]+\}:mark:")


@dataclass(frozen=True)
class Facts:
    """What a server says of itself.

    Attributes:
        info: of ``INFO``. Empty: we may not ask.
        settings: of ``CONFIG GET``. Empty: we may not ask.
    """

    info: dict[str, Any]
    settings: dict[str, str]

    @property
    def version(self) -> tuple[int, ...]:
        """The version of Redis, or the one that another server claims to be compatible with."""
        return tuple(map(int, re.findall(r"\d+", str(self.info.get("redis_version", "")))[:3]))

    @property
    def run_id(self) -> str:
        """Names the process. Empty: not known."""
        return str(self.info.get("run_id", ""))


def ask(client: Any) -> Facts:
    """Ask a server for what it tells.

    Raises:
        NotExamined: it does not answer, or refuses us altogether.
    """
    try:
        client.ping()
    except NoPermissionError:
        pass  # it answers
    except (RedisError, OSError) as error:
        raise NotExamined(f"does not answer, or refuses us: {redacted(str(error))}") from error
    info: dict[str, Any] = {}
    settings: dict[str, str] = {}
    try:
        info = client.info()
    except ResponseError:
        pass  # it becomes a finding
    try:
        settings = {_text(name): _text(value) for name, value in client.config_get("*").items()}
    except ResponseError:
        pass  # likewise
    return Facts(info, settings)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def findings(client: Any, facts: Facts, *, is_cluster: bool = False) -> Iterator[Finding]:
    """Yield what is the same for a server alone, behind Sentinels, and in a Cluster."""
    if facts.info:
        yield from version(facts)
        yield from role(facts, is_cluster=is_cluster)
        yield from memory(facts)
        yield from persistence(facts)
        yield from replicas(facts)
    else:
        yield Finding(
            "unknown",
            "the account may not run INFO: version, role, memory, persistence and replicas were not looked at",
            "The doctor sees more than a worker needs.",
            "pass the URL of an account that may also run INFO and CONFIG GET",
            PERMISSIONS,
        )
    if facts.info and not facts.settings:
        yield Finding(
            "unknown",
            "CONFIG GET is not allowed: appendfsync and min-replicas-to-write were not looked at",
            "Some settings are in no other answer of the server.",
            "pass the URL of an account that may run CONFIG GET, or read these settings yourself",
            PERMISSIONS,
        )
    try:
        yield clock(*measured_offset(lambda: _seconds(client.time())))
    except NoPermissionError:
        what = "the account may not run TIME: the clock was not looked at"
        yield Finding("unknown", what, change="give it the right:\nACL SETUSER worker +time", page=PERMISSIONS)


def _seconds(answer: tuple[int, int]) -> float:
    seconds, micros = answer
    return seconds + micros / 1e6


def version(facts: Facts) -> Iterator[Finding]:
    """Yield the findings about the version."""
    text = facts.info.get("redis_version")
    if facts.info.get("server_name") == "valkey":
        text = str(facts.info.get("valkey_version", ""))
        if tuple(map(int, text.split(".")[:2])) >= VALKEY_TRIED:
            yield Finding("ok", f"Valkey {text}", page=VALKEY)
        else:
            yield Finding(
                "warning", f"Valkey {text}", "The library was not run on it.", "use Valkey 9.1 or later", VALKEY
            )
    elif facts.version[:2] < OLDEST:
        yield Finding(
            "wrong",
            f"Redis {text} is too old",
            "The library's scripts need commands of 6.2.",
            "use Redis 6.2, 7 or 8, or Valkey 9.1",
            CHECKLIST,
        )
    elif facts.version[0] > NEWEST_TRIED:
        yield Finding("warning", f"Redis {text}", "The library was not run on it.", "use Redis 7 or 8", CHECKLIST)
    else:
        yield Finding("ok", f"Redis {text}", page=CHECKLIST)


def role(facts: Facts, *, is_cluster: bool) -> Iterator[Finding]:
    """Yield what is wrong with the server's role."""
    if facts.info.get("role") == "slave":
        primary = f"{facts.info.get('master_host')}:{facts.info.get('master_port')}"
        yield Finding(
            "wrong",
            f"this is a replica of {primary}",
            "A replica grants no locks.",
            f"name the primary, which is {primary} now, or the Sentinels: redis+sentinel://host1,host2/service/0",
            SENTINEL,
        )
    if facts.info.get("cluster_enabled") and not is_cluster:
        yield Finding(
            "wrong",
            "this is a node of a Redis Cluster",
            "A client of one server is refused there.",
            "write redis+cluster:// in place of redis://",
            WRONG_SETTINGS,
        )


def memory(facts: Facts) -> Iterator[Finding]:
    """Yield the findings about the policy of eviction, and about memory."""
    policy, most = facts.info.get("maxmemory_policy", "noeviction"), int(facts.info.get("maxmemory", 0))
    if policy == "noeviction":
        yield Finding("ok", "maxmemory-policy is noeviction", page=CHECKLIST)
    elif most:
        yield Finding(
            "wrong",
            f"maxmemory-policy is {policy}, with maxmemory {most:,} bytes",
            "The server may evict locks that are held, and then two clients hold one lock.",
            "set it:\nCONFIG SET maxmemory-policy noeviction",
            CHECKLIST,
        )
    else:
        yield Finding(
            "warning",
            f"maxmemory-policy is {policy}, without maxmemory",
            "As soon as somebody sets maxmemory, the server may evict locks that are held.",
            "set it:\nCONFIG SET maxmemory-policy noeviction",
            CHECKLIST,
        )
    if most and policy == "noeviction" and int(facts.info.get("used_memory", 0)) > FULL * most:
        yield Finding(
            "warning",
            f"the server uses more than {FULL:.0%} of its maxmemory, {most:,} bytes",
            "When it is full, no lock can be taken.",
            "free memory, or raise maxmemory",
            CHECKLIST,
        )


def persistence(facts: Facts) -> Iterator[Finding]:
    """Yield the findings about what survives a crash."""
    if facts.info.get("aof_enabled"):
        appendfsync = facts.settings.get("appendfsync", "")
        if appendfsync == "no":
            yield Finding(
                "warning",
                "appendonly is on, with appendfsync no",
                "If the machine dies, half a minute of locks is lost, and held locks are free.",
                "set it, if you have a guard:\nCONFIG SET appendfsync everysec",
                PERSISTENCE,
            )
        elif appendfsync == "everysec":
            yield Finding(
                "ok",
                "appendfsync is everysec: enough with a guard; without one, a crash may free locks",
                "",
                "",
                PERSISTENCE,
            )
        elif appendfsync:
            yield Finding("ok", f"appendfsync is {appendfsync}", page=PERSISTENCE)
        if facts.info.get("aof_last_write_status", "ok") != "ok":
            yield _cannot_write("its append-only file")
        return
    kept = "snapshots alone" if facts.settings.get("save") else "nothing"
    if not facts.settings:
        kept = "no append-only file"
    yield Finding(
        "warning",
        f"appendonly is off: the server keeps {kept}",
        "If it dies, locks are free although they are held. Guards keep the data safe.",
        "turn it on, also in the configuration file:\nCONFIG SET appendonly yes",
        PERSISTENCE,
    )
    stops = facts.settings.get("stop-writes-on-bgsave-error", "yes") == "yes"
    if facts.info.get("rdb_last_bgsave_status", "ok") != "ok" and stops:
        yield _cannot_write("its snapshot")


def _cannot_write(what: str) -> Finding:
    return Finding(
        "wrong",
        f"the server could not write {what}",
        "It refuses all writes, so no lock can be taken.",
        "free its disk, and read its log",
        PERSISTENCE,
    )


def replicas(facts: Facts) -> Iterator[Finding]:
    """Yield the findings about the replicas of a primary."""
    if facts.info.get("role") != "master":
        return
    there = int(facts.info.get("connected_slaves", 0))
    needed = int(facts.settings.get("min-replicas-to-write", 0))
    good = int(facts.info.get("min_slaves_good_slaves", there))
    if needed > good:
        yield Finding(
            "wrong",
            f"min-replicas-to-write is {needed}, and {good} replicas are connected without delay",
            "The server refuses all writes, so no lock can be taken.",
            "connect more replicas, or lower min-replicas-to-write",
            SENTINEL,
        )
    elif needed:
        yield Finding("ok", f"min-replicas-to-write is {needed}, of {there} connected replicas", page=SENTINEL)
    elif there and facts.settings:
        yield Finding(
            "warning",
            f"there are {there} replicas, and min-replicas-to-write is 0",
            "A former primary that is cut off goes on to grant locks.",
            "set them:\nCONFIG SET min-replicas-to-write 1\nCONFIG SET min-replicas-max-lag 2",
            SENTINEL,
        )
    else:
        yield Finding("ok", f"{there} replicas are connected", page=SENTINEL)


def keyspace(client: Any, *, for_locks_alone: bool = False) -> Iterator[Finding]:
    """Yield whether others use the keyspace. Their keys are counted; nothing else is read.

    Args:
        client: of one server.
        for_locks_alone: also the data of guards should not be there.
    """
    deadline = time.monotonic() + MOST_SECONDS
    names: set[bytes] = set()
    cursor = 0
    try:
        while True:
            cursor, page = client.scan(cursor, count=1000)
            names.update(name.encode() if isinstance(name, str) else name for name in page)
            if not cursor or len(names) >= MOST_KEYS or time.monotonic() > deadline:
                break
    except NoPermissionError:
        yield Finding(
            "unknown",
            "the account may not run SCAN: whether others use the keyspace was not looked at",
            "holders() needs it, too.",
            "give it the right:\nACL SETUSER worker +scan",
            PERMISSIONS,
        )
        return
    held = {match[1] for name in names if (match := _HOLDER.match(name))}
    foreign = sum(not name.startswith(b"fencing:") and name not in held for name in names)
    seen = f"of {len(names)} keys" + (" that were looked at" if cursor else "")
    is_guarded = not for_locks_alone and any(map(_MARK.match, names))
    if not foreign or is_guarded:
        beside = ", beside the marks of a guard of data in Redis" if foreign else ""
        yield Finding("ok", f"{foreign} {seen} are not of this library{beside}", page=CHECKLIST)
    else:
        yield Finding(
            "warning",
            f"{foreign} {seen} are not of this library",
            "The name of a lock is its key, so names may clash; and with other data the memory may be full.",
            "use a server for locks alone, or give each application a prefix",
            "docs/guide/locks.md#a-service-that-applications-share",
        )
