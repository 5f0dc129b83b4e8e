"""A ZooKeeper: its servers, the limits of sessions, and the rights of nodes."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterator
from typing import Any

from kazoo.exceptions import KazooException, NoAuthError, NoNodeError
from kazoo.security import Permissions, make_digest_acl_credential

from fencing.cli.doctor.findings import SECONDS, Finding, NotExamined
from fencing.locks.urls import parse
from fencing.zookeeper.session import seconds_of
from fencing.zookeeper.urls import DEFAULT_PORT, client_of

OPERATOR = "docs/coordinators/zookeeper.md#for-the-operator"
USE = "docs/coordinators/zookeeper.md#use-it"
BELIEVES = "docs/coordinators/zookeeper.md#how-long-a-holder-believes"

OLDEST = (3, 6)
LEAST_SERVERS = 3
MOST_BYTES = 65_536
_CLOSE_SESSION = -11

ROOT = "/fencing"
_BASE = Permissions.READ | Permissions.CREATE | Permissions.WRITE | Permissions.DELETE
NEEDED = {"/fencing/1/lock": Permissions.READ | Permissions.CREATE, "/fencing/1/base": _BASE}
"""The rights on nodes that are there."""

_NAMES = {
    Permissions.READ: "read",
    Permissions.WRITE: "write",
    Permissions.CREATE: "create",
    Permissions.DELETE: "delete",
}
_OTHER_SCHEMES = ("sasl", "x509", "ip", "host")


def examine(url: str) -> Iterator[Finding]:
    """Yield the findings about the servers of a URL.

    Raises:
        NotExamined: no server answers.
        ValueError: the URL is wrong.
    """
    parsed = parse(url, DEFAULT_PORT, such_as="zookeeper://host1:2181,host2:2181")
    client = client_of(url)
    said: list[str] = []
    places: list[tuple[str, int]] = []
    for host, port in parsed.hosts:
        try:
            said.append(ask(host, port, "srvr"))
            places.append((host, port))
        except OSError as error:
            yield Finding(
                "warning",
                f"{host}:{port} does not answer: {error}",
                "Of the servers, a majority must answer.",
                "start it, or take it out of the URL",
                OPERATOR,
            )
    if not said:
        raise NotExamined("no server answers")
    yield from servers(said)
    try:
        client.start(timeout=SECONDS)
    except (KazooException, OSError, client.handler.timeout_exception) as error:
        client.stop()
        client.close()
        raise NotExamined(f"no server gives us a session: {error}") from error
    try:
        yield from _session(*places[0], seconds_of(client))
        yield from _ensemble(client, len(parsed.hosts))
        account = (parsed.username or "", parsed.password or "")
        yield from _rights(client, make_digest_acl_credential(*account) if any(account) else None)
    except (KazooException, client.handler.timeout_exception) as error:
        raise NotExamined(f"an answer failed: {type(error).__name__} {error}") from error
    finally:
        client.stop()
        client.close()


def ask(host: str, port: int, word: str) -> str:
    """Return what a server says to a command of four letters."""
    said = b""
    with socket.create_connection((host, port), SECONDS) as connection:
        connection.sendall(word.encode())
        while len(said) < MOST_BYTES and (part := connection.recv(MOST_BYTES)):
            said += part
    return said.decode(errors="replace")


def servers(said: list[str]) -> Iterator[Finding]:
    """Yield the findings about versions and modes, from the answers to ``srvr``: one of each server."""
    versions = sorted({found[1] for text in said if (found := re.search(r"version: (\d+\.\d+\.\d+)", text))})
    for version in versions:
        if tuple(map(int, version.split(".")[:2])) < OLDEST:
            yield Finding("wrong", f"ZooKeeper {version}", "It is too old.", "use 3.6 or later", USE)
        else:
            yield Finding("ok", f"ZooKeeper {version}", page=USE)
    if len(versions) > 1:
        yield Finding(
            "warning",
            "the servers have different versions",
            "They work as the oldest one does.",
            "finish the upgrade",
            OPERATOR,
        )
    modes = [found[1] for text in said if (found := re.search(r"Mode: ([\w-]+)", text))]
    closed = sum("whitelist" in text for text in said)
    if closed:
        yield Finding(
            "unknown",
            f"{closed} servers do not answer to srvr",
            "Their version and mode were not looked at.",
            "allow it: 4lw.commands.whitelist=srvr",
            OPERATOR,
        )
    silent = len(said) - len(modes) - closed
    if silent:
        yield Finding(
            "warning",
            f"{silent} of {len(said)} servers serve nobody",
            "They see no majority.",
            "start the others, and look at the network between them",
            OPERATOR,
        )
    if "standalone" in modes:
        yield Finding(
            "warning",
            "the server is alone",
            "While it is away, no lock can be taken, and leases end.",
            "run three servers, each on a machine of its own",
            OPERATOR,
        )
    elif "read-only" in modes:
        yield Finding("warning", "a server is read only", "It sees no majority.", "start the others", OPERATOR)
    elif modes:
        yield Finding("ok", f"of {len(said)} named servers {modes.count('leader')} leads", page=OPERATOR)


def _ensemble(client: Any, named: int) -> Iterator[Finding]:
    try:
        text, _ = client.get("/zookeeper/config")
    except (NoNodeError, NoAuthError):  # below a chroot it is not to be seen
        return
    members = len(re.findall(rb"(?m)^server\.\d+=.*participant", text))
    if not members:
        return  # one server alone
    if members < LEAST_SERVERS or members % 2 == 0:
        yield Finding(
            "warning",
            f"{members} servers vote",
            "A majority must answer. An even number survives no more failures than one less.",
            "run three or five",
            OPERATOR,
        )
    else:
        yield Finding("ok", f"{members} servers vote, of which {members // 2} may fail", page=OPERATOR)
    if named < 2:
        yield Finding(
            "warning",
            "the URL names one server",
            "If that one fails, no other is asked.",
            "name all: zookeeper://host1,host2,host3",
            OPERATOR,
        )


def _session(host: str, port: int, ttl: float) -> Iterator[Finding]:
    try:
        least, most = kept_seconds(host, port, 1), kept_seconds(host, port, 2**31 - 1)
    except (OSError, struct.error) as error:
        change = "see that the servers answer, and look again"
        yield Finding("unknown", f"the limits of sessions were not looked at: {error}", change=change, page=OPERATOR)
        return
    if least <= ttl <= most:
        yield Finding("ok", f"the servers keep sessions of {least:g} to {most:g} s: a ttl of {ttl:g} s", page=BELIEVES)
    else:
        yield Finding(
            "wrong",
            f"the servers keep sessions of {least:g} to {most:g} s, and not of {ttl:g} s",
            "The ttl of a coordinator is that of its session. Where they do not keep it, the first lock is refused.",
            "choose a ttl between them, or change minSessionTimeout or maxSessionTimeout",
            OPERATOR,
        )


def kept_seconds(host: str, port: int, asked_ms: int) -> float:
    """Return for how many seconds a server keeps a session that asks for so many milliseconds. It ends it at once.

    The frames are those of ZooKeeper's protocol: ConnectRequest, ConnectResponse and the request closeSession.
    """
    request = struct.pack(">iqiqi16s?", 0, 0, asked_ms, 0, 16, bytes(16), False)
    closing = struct.pack(">ii", 1, _CLOSE_SESSION)
    with socket.create_connection((host, port), SECONDS) as connection, connection.makefile("rb") as replies:
        connection.sendall(struct.pack(">i", len(request)) + request)
        [length] = struct.unpack(">i", replies.read(4))
        _, kept_ms = struct.unpack(">ii", replies.read(length)[:8])
        connection.sendall(struct.pack(">i", len(closing)) + closing)
        replies.read(4)
    return float(kept_ms) / 1000


def _rights(client: Any, us: str | None) -> Iterator[Finding]:
    if client.exists(ROOT) is None:
        yield Finding("ok", f"{ROOT} is not there yet: the first lock makes it", page=OPERATOR)
        return
    for path, needed in NEEDED.items():
        try:
            acl, _ = client.get_acls(path)
        except NoNodeError:
            continue
        except NoAuthError:
            yield Finding(
                "wrong",
                f"this user may not read the rights of {path}",
                "It has no right there, so it can take no lock.",
                "write the user into the URL: zookeeper://user:password@host1,host2",
                OPERATOR,
            )
            continue
        yield from rights_of(path, acl, needed, us)


def rights_of(path: str, acl: list[Any], needed: int, us: str | None) -> Iterator[Finding]:
    """Yield the findings about the rights of a node.

    Args:
        path: of the node.
        acl: the rights that kazoo shows.
        needed: the permissions, as bits.
        us: our user and its digest; None: there is none.
    """
    of_all = of_us = 0
    for each in acl:
        if (each.id.scheme, each.id.id) == ("world", "anyone"):
            of_all |= each.perms
        elif (each.id.scheme, each.id.id) == ("digest", us):
            of_us |= each.perms
    missing = [name for bit, name in _NAMES.items() if bit & needed & ~(of_all | of_us)]
    if of_all & needed == needed:
        yield Finding(
            "warning",
            f"everybody may use {path}",
            "Everybody who reaches the servers may read tokens, and free locks.",
            "restrict the network; or use auth_data and default_acl, with the same rights in all programs",
            OPERATOR,
        )
    elif missing and any(each.id.scheme in _OTHER_SCHEMES for each in acl):
        what = f"whether we may {', '.join(missing)} at {path} is not to be seen"
        change = f"look in zkCli.sh as an administrator:\ngetAcl {path}"
        yield Finding("unknown", what, change=change, page=OPERATOR)
    elif missing:
        yield Finding(
            "wrong",
            f"this user may not {', '.join(missing)} at {path}",
            "Without that, locks cannot be taken, or not be given back.",
            "give the right to the user, with setAcl; or name the right user in the URL",
            OPERATOR,
        )
    else:
        yield Finding("ok", f"this user may use {path}", page=OPERATOR)
