"""An etcd: its members, its limits, and the rights of the user."""

from __future__ import annotations

import base64
import json
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any

from fencing.cli.doctor.findings import SAMPLES, SECONDS, Finding, NotExamined, clock
from fencing.etcd.urls import arguments_of

FAILURES = "docs/coordinators/etcd.md#when-a-member-fails"
OPERATOR = "docs/coordinators/etcd.md#for-the-operator"
USE = "docs/coordinators/etcd.md#use-it"

OLDEST = (3, 4)
ENDS_LEASES: dict[tuple[int, ...], int] = {(3, 4): 31, (3, 5): 13}
"""By minor version: the first patch in which a former leader ends no leases (etcd's issue 15247)."""

LEAST_MEMBERS = 3
FULL = 0.8
"""From which share of the quota on there is a warning."""

FIRST, AFTER = b"fencing/1/", b"fencing/10"
"""All keys of the library: from the first on, up to the second."""


class Refused(Exception):
    """etcd answered with an error. The text is etcd's."""


class Client:
    """Asks one member. It writes nothing.

    Attributes:
        token: of the user; empty: there is none.
        offset: by how many seconds the server's clock is ahead, and how far that may be wrong.
    """

    def __init__(self, endpoint: str, tls: ssl.SSLContext | None, token: str = "") -> None:
        self.endpoint = endpoint
        self.token = token
        self.offset = (0.0, float("inf"))
        handlers = [urllib.request.HTTPSHandler(context=tls)] if tls else []
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), *handlers)

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of the JSON gateway.

        Raises:
            Refused: it is an error.
            OSError, TypeError, ValueError: there is none of etcd's.
        """
        headers = {"Authorization": self.token} if self.token else {}
        request = urllib.request.Request(f"{self.endpoint}/v3/{path}", json.dumps(body).encode(), headers)
        before, began = time.time(), time.monotonic()
        try:
            with self._opener.open(request, timeout=SECONDS) as reply:
                took = time.monotonic() - began
                self._note_date(reply.headers.get("Date"), before, took)
                answer = json.loads(reply.read())
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode(errors="replace")
            try:
                text = json.loads(text)["message"]
            except (ValueError, KeyError, TypeError):
                pass  # no error of the gateway
            raise Refused(text[:300]) from error
        return dict(answer)  # or TypeError, ValueError

    def metrics(self) -> str:
        """Return the metrics as text; empty: it does not show them here."""
        try:
            with self._opener.open(f"{self.endpoint}/metrics", timeout=SECONDS) as reply:
                found: str = reply.read().decode(errors="replace")
                return found
        except (OSError, ValueError):
            return ""

    def _note_date(self, date: str | None, before: float, took: float) -> None:
        """Keep the best measurement. The date of HTTP has whole seconds, so half a second is unknown."""
        if date is not None and took / 2 + 0.5 < self.offset[1]:
            there = parsedate_to_datetime(date).timestamp() + 0.5
            self.offset = there - before - took / 2, took / 2 + 0.5


def examine(url: str) -> Iterator[Finding]:
    """Yield the findings about the cluster of a URL.

    Raises:
        NotExamined: no member answers.
        ValueError: the URL is wrong.
    """
    arguments = arguments_of(url)
    clients = [Client(endpoint, arguments["tls"]) for endpoint in arguments["endpoints"]]
    alive: list[tuple[Client, dict[str, Any]]] = []
    for client in clients:
        try:
            alive.append((client, client.ask("maintenance/status", {})))
        except Refused as error:
            raise NotExamined(f"{client.endpoint} refuses to tell its status: {error}") from error
        except (OSError, TypeError, ValueError) as error:
            yield Finding(
                "warning",
                f"{client.endpoint} does not answer: {error}",
                "Of the members, a majority must answer.",
                "start it, or take it out of the URL",
                FAILURES,
            )
    if not alive:
        raise NotExamined("no member answers")
    statuses = [status for _, status in alive]
    yield from versions(statuses)
    client, status = alive[0]
    if any(int(each.get("leader", 0)) == 0 for each in statuses):
        yield Finding("wrong", "a member sees no leader", "No lock can be taken.", "start the other members", FAILURES)
    for _ in range(SAMPLES):
        client.ask("maintenance/status", {})
    if client.offset[1] < float("inf"):
        yield clock(*client.offset, OPERATOR)
    yield from _log_in(client, arguments["user"], arguments["password"])
    yield from _members(client, len(clients), statuses)
    yield from _alarms(client)
    yield from quota(int(status.get("dbSize", 0)), int(status.get("dbSizeQuota", 0)) or _quota_in(client.metrics()))


def versions(statuses: list[dict[str, Any]]) -> Iterator[Finding]:
    """Yield the findings about the versions of the members."""
    texts = sorted({status["version"] for status in statuses})
    if len(texts) > 1:
        yield Finding(
            "warning",
            f"the members have different versions: {', '.join(texts)}",
            "The cluster works as the oldest one does.",
            "finish the upgrade",
            OPERATOR,
        )
    for text in texts:
        numbers = tuple(map(int, re.findall(r"\d+", text)[:3]))
        if numbers[:2] < OLDEST:
            yield Finding("wrong", f"etcd {text}", "It has no gateway at /v3.", "use etcd 3.4.31 or later", USE)
        elif numbers[2] < ENDS_LEASES.get(numbers[:2], 0):
            yield Finding(
                "warning",
                f"etcd {text}",
                "A former leader whose disk was stuck ends leases that are held (etcd's issue 15247).",
                "use 3.4.31, 3.5.13 or later",
                FAILURES,
            )
        else:
            yield Finding("ok", f"etcd {text}", page=USE)


def _log_in(client: Client, user: str | None, password: str | None) -> Iterator[Finding]:
    """Log in, where there is a user. Yield what the user may do."""
    try:
        if user is not None:
            client.token = client.ask("auth/authenticate", {"name": user, "password": password})["token"]
        else:
            client.ask("kv/range", {"key": _base64(FIRST), "range_end": _base64(AFTER), "limit": 1})
    except Refused as error:
        if user is not None and "not enabled" in str(error):
            yield _open()
            return
        yield Finding(
            "wrong",
            f"etcd refuses {'the user' if user is not None else 'requests without a user'}: {error}",
            "No lock can be taken.",
            "write user and password into the URL: etcd://user:password@host1,host2",
            OPERATOR,
        )
        return
    if user is None:
        yield _open()
        return
    yield from _rights(client, user)


def _open() -> Finding:
    return Finding(
        "warning",
        "authentication is off",
        "Everybody who reaches etcd may take locks, read tokens, and delete all data.",
        "restrict the network; or make users, and turn it on:\netcdctl auth enable",
        OPERATOR,
    )


def _rights(client: Client, user: str) -> Iterator[Finding]:
    try:
        roles = client.ask("auth/user/get", {"name": user}).get("roles", [])
        permissions = [each for role in roles for each in client.ask("auth/role/get", {"role": role}).get("perm", [])]
    except Refused as error:
        change = f"look as an administrator:\netcdctl user get {user} --detail"
        yield Finding("unknown", f"the rights of the user were not looked at: {error}", change=change, page=OPERATOR)
        return
    if "root" in roles or may_all(permissions):
        yield Finding("ok", "the user may read and write the keys that begin with fencing/1/", page=OPERATOR)
    else:
        yield Finding(
            "wrong",
            "the user may not read and write all keys that begin with fencing/1/",
            "holder() may answer, but no lock can be taken.",
            "give the right:\netcdctl role add locks\n"
            "etcdctl role grant-permission locks --prefix=true \\\n    readwrite fencing/1/\n"
            f"etcdctl user grant-role {user} locks",
            OPERATOR,
        )


def may_all(permissions: list[dict[str, Any]]) -> bool:
    """Return whether one permission, of those of the gateway, has all keys of the library."""
    for each in permissions:
        first = base64.b64decode(each.get("key", ""))
        after = base64.b64decode(each.get("range_end", ""))
        if each.get("permType", "READ") == "READWRITE" and first <= FIRST and (after == b"\0" or after >= AFTER):
            return True
    return False


def _members(client: Client, named: int, statuses: list[dict[str, Any]]) -> Iterator[Finding]:
    try:
        members = client.ask("cluster/member/list", {})["members"]
    except Refused as error:
        change = "look as an administrator:\netcdctl member list"
        yield Finding("unknown", f"the members were not looked at: {error}", change=change, page=OPERATOR)
        return
    voters = sum(not member.get("isLearner") for member in members)
    if voters < LEAST_MEMBERS or voters % 2 == 0:
        yield Finding(
            "warning",
            f"{voters} members vote",
            "A majority must answer. With three, one may fail; an even number survives no more than one less.",
            "run three or five, each on a machine of its own",
            FAILURES,
        )
    else:
        yield Finding("ok", f"{voters} members vote, of which {voters // 2} may fail", page=FAILURES)
    if named < 2 <= voters:
        yield Finding(
            "warning",
            "the URL names one member",
            "If that one fails, no other is asked.",
            "name at least two: etcd://host1,host2",
            FAILURES,
        )
    if any(status.get("isLearner") for status in statuses):
        yield Finding(
            "warning",
            "the URL names a learner",
            "It refuses requests until it is promoted.",
            "name members that vote",
            FAILURES,
        )


def _alarms(client: Client) -> Iterator[Finding]:
    try:
        alarms = client.ask("maintenance/alarm", {"action": "GET"}).get("alarms", [])
    except Refused as error:
        change = "look as an administrator:\netcdctl alarm list"
        yield Finding("unknown", f"alarms were not looked at: {error}", change=change, page=FAILURES)
        return
    kinds = sorted({each.get("alarm", "NONE") for each in alarms})
    if "NOSPACE" in kinds:
        yield Finding(
            "wrong",
            "the alarm NOSPACE is on: the quota is reached",
            "No lock can be taken. Held ones are renewed and released.",
            "compact and defragment, then:\netcdctl alarm disarm",
            FAILURES,
        )
    for kind in kinds:
        if kind not in ("NOSPACE", "NONE"):
            yield Finding("wrong", f"the alarm {kind} is on", "etcd refuses requests.", "read etcd's log", FAILURES)
    if not kinds:
        yield Finding("ok", "no alarm is on", page=FAILURES)


def quota(size: int, most: int) -> Iterator[Finding]:
    """Yield how full the database is.

    Args:
        size: in bytes.
        most: the quota, in bytes; 0: not known.
    """
    if not most:
        what = f"the database has {size:,} bytes; the quota is not shown"
        change = "compare them with --quota-backend-bytes, which is 2 GiB by default:\netcdctl endpoint status"
        yield Finding("unknown", what, change=change, page=OPERATOR)
    elif size > FULL * most:
        yield Finding(
            "warning",
            f"the database has {size:,} bytes, of a quota of {most:,}",
            "When the quota is reached, no lock can be taken.",
            "set --auto-compaction-retention=1h, and defragment:\netcdctl defrag",
            OPERATOR,
        )
    else:
        yield Finding("ok", f"the database has {size:,} bytes, of a quota of {most:,}", page=OPERATOR)


def _quota_in(metrics: str) -> int:
    found = re.search(r"(?m)^etcd_server_quota_backend_bytes (\S+)", metrics)
    return int(float(found[1])) if found else 0


def _base64(key: bytes) -> str:
    return base64.b64encode(key).decode()
