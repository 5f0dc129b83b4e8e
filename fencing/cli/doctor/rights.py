"""Which commands and keys an account of Redis may use, found without a write."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import redis
from redis.exceptions import NoPermissionError, ResponseError

from fencing.cli.doctor.findings import Finding

PAGE = "docs/coordinators/redis.md#permissions"
OF_REDLOCK = "docs/coordinators/redlock.md#keys-and-permissions"

_KEY, _CHANNEL = "fencing:1:doctor", "fencing:1:wake:doctor"

_KEYED = {
    "evalsha": ("0" * 40, "1", _KEY),
    "eval": ("return 1", "1", _KEY),
    "get": (_KEY,),
    "mget": (_KEY,),
    "set": (_KEY, "1"),
    "del": (_KEY,),
    "exists": (_KEY,),
    "incr": (_KEY,),
    "decr": (_KEY,),
    "incrby": (_KEY, "1"),
    "pttl": (_KEY,),
    "pexpire": (_KEY, "1"),
    "zcard": (_KEY,),
    "zadd": (_KEY, "1", "one"),
    "zrem": (_KEY, "one"),
    "zrange": (_KEY, "0", "1"),
    "zrevrange": (_KEY, "0", "1"),
    "zrank": (_KEY, "one"),
    "zscore": (_KEY, "one"),
    "zpopmin": (_KEY,),
    "hincrby": (_KEY, "one", "1"),
    "hexists": (_KEY, "one"),
    "hlen": (_KEY,),
    "hget": (_KEY, "one"),
    "hdel": (_KEY, "one"),
    "hrandfield": (_KEY,),
}
_CHANNELLED = {"subscribe": (_CHANNEL,), "publish": (_CHANNEL, "1")}
_PLAIN: dict[str, tuple[str, ...]] = {"time": (), "ping": ()}

LOCKS = {**_KEYED, **_CHANNELLED, **_PLAIN}
"""What one Redis needs, each as one might send it."""

CLUSTER = {
    **LOCKS,
    "cluster|slots": (),
    "command": (),
    "asking": (),
    "ssubscribe": (_CHANNEL,),
    "sunsubscribe": (_CHANNEL,),
    "spublish": (_CHANNEL, "1"),
}
REDLOCK = {
    **{name: _KEYED[name] for name in ("evalsha", "eval", "get", "mget", "set", "del", "exists", "pttl", "pexpire")},
    "time": (),
    "info": (),
    "script|load": ("return 1",),
}

_SHARDED = ("ssubscribe", "sunsubscribe", "spublish")
"""Not before 7.0."""

_ASK_SCRIPT = """
local found = {}
if not redis.acl_check_cmd then
    return found
end
for number, command in ipairs(cjson.decode(ARGV[1])) do
    local known, allowed = pcall(redis.acl_check_cmd, unpack(command))
    found[number] = (known and (allowed and 1 or 0)) or -1
end
return found
"""
"""Since Redis 7.0 a script may ask for its user's permissions. It touches no key. Nothing: the server is older."""

_ALLOWED, _REFUSED, _MISSING = 1, 0, -1

WIDTH = 66


def findings(client: Any, needed: dict[str, tuple[str, ...]], lock: str | None, page: str) -> Iterable[Finding]:
    """Yield what the account of a client may not do.

    Args:
        client: of one server.
        needed: commands with arguments, by name.
        lock: the name of a lock whose keys it should be able to use; None: only those of the library are looked at.
        page: has the rule.
    """
    asked = {name: (*name.split("|"), *arguments) for name, arguments in needed.items()}
    if lock is not None:
        asked[""] = ("set", lock, "1")
    try:
        answers = dict(zip(asked, _answers(client, list(asked.values())), strict=True))
    except NoPermissionError as error:
        yield _refused("this account may not run EVAL, so it can take no lock", needed, client, lock, page, str(error))
        return
    except ResponseError as error:
        if "unknown command" not in str(error).lower():
            raise
        yield _renamed(["eval"])
        return
    of_lock = answers.pop("", _ALLOWED)
    missing = [name for name, answer in answers.items() if answer == _MISSING]
    refused = [name for name, answer in answers.items() if answer == _REFUSED]
    if missing:
        yield _renamed(missing)
    keyed = [name for name in needed if name in _KEYED]
    if set(keyed) - set(missing) <= set(refused) and "time" not in refused:
        yield _refused("this account may not use keys that begin with fencing:1:", needed, client, lock, page)
    elif refused:
        yield _refused(f"this account may not use {', '.join(map(_shown, refused))}", needed, client, lock, page)
    elif of_lock == _REFUSED:
        yield _refused(f"this account may not use the key {lock!r}, which is the lock", needed, client, lock, page)
    elif not missing:
        of_names = "" if lock is not None else "; --lock NAME also looks at the key of a lock"
        yield Finding("ok", f"the account has the permissions that locks need{of_names}", page=page)


def _answers(client: Any, commands: list[tuple[str, ...]]) -> list[int]:
    return list(client.eval(_ASK_SCRIPT, 0, json.dumps(commands))) or _answers_by_queue(client, commands)


def _answers_by_queue(client: Any, commands: list[tuple[str, ...]]) -> list[int]:
    """Ask a server before 7.0: it checks commands as they are queued, and they are never executed."""
    bare: Any = redis.Redis(connection_pool=client.connection_pool)
    bare.response_callbacks.clear()
    pipe = bare.pipeline(transaction=False)
    for command in [("MULTI",), *commands, ("DISCARD",)]:
        pipe.execute_command(*command)
    begun, *replies, _ = pipe.execute(raise_on_error=False)
    if isinstance(begun, ResponseError):
        raise begun
    return [_answer_of(reply) for reply in replies]


def _answer_of(reply: Any) -> int:
    """Return what a reply to a queued command says. Other errors, such as MOVED, come after the permissions."""
    if isinstance(reply, NoPermissionError):
        return _REFUSED
    return _MISSING if isinstance(reply, ResponseError) and "unknown" in str(reply).lower() else _ALLOWED


def before_seven(needed: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Return what is needed where there are no sharded channels, nor rules for a part of a command."""
    return {name: arguments for name, arguments in needed.items() if name not in _SHARDED}


def _shown(name: str) -> str:
    if name in _CHANNELLED or name in _SHARDED:
        return f"{name} on &fencing:1:wake:*"
    return name


def _renamed(names: list[str]) -> Finding:
    return Finding(
        "wrong",
        f"the server has no command {', '.join(names)}: it was renamed, or this is no Redis",
        "The library's scripts use these commands by their names.",
        "remove rename-command from the configuration, and restrict accounts by ACL rules instead",
        PAGE,
    )


def _refused(
    what: str,
    needed: dict[str, tuple[str, ...]],
    client: Any,
    lock: str | None,
    page: str,
    why: str = "Locks need that.",
) -> Finding:
    lines = "\n".join(rule(needed, client.connection_pool.connection_kwargs.get("username") or "worker", lock))
    return Finding("wrong", what, why, f"give it the smallest rule, as an administrator:\n{lines}", page)


def rule(needed: dict[str, tuple[str, ...]], user: str, lock: str | None) -> list[str]:
    """Return the smallest rule, as several commands for redis-cli: each adds to those before."""
    keys = lock or "NAMES-OF-LOCKS*"
    words = [f"~{keys}", "~fencing:1:*"]
    if any(name in _CHANNELLED for name in needed):
        words += ["resetchannels", "&fencing:1:wake:*"]
    words += [f"+{name}" for name in needed]
    lines, line = [], f"ACL SETUSER {user} on"
    for word in words:
        if len(line) + 1 + len(word) > WIDTH:
            lines.append(line)
            line = f"ACL SETUSER {user}"
        line = f"{line} {word}"
    return [*lines, line]
