"""``fencing doctor``: examines each service that is named, and says what to change."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Annotated

import typer

from fencing.cli.doctor.findings import Examined, Finding, NotExamined, status_of
from fencing.cli.holders import Json
from fencing.cli.output import say, say_json
from fencing.cli.services import NoUrl, Services, local_file
from fencing.cli.words import of_commands
from fencing.kernel.errors import FencingError
from fencing.locks.urls import redacted, scheme_of

WIDTH = 80
LEVELS = {"ok": "green", "warning": "yellow", "wrong": "bold red", "unknown": "magenta"}
"""The levels, and their styles on a terminal."""

INDENT = " " * 10
PAGE = "docs/operations/command-line.md#fencing-doctor"
URLS = "docs/operations/command-line.md#which-service"

Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        envvar="FENCING_STORE_URL",
        show_envvar=False,
        help="A bucket, or a folder of a guard of files. Such as s3://bucket/folder, file:///srv/data; else "
        "$FENCING_STORE_URL.",
    ),
]
WriteProbe = Annotated[
    bool,
    typer.Option(
        "--write-probe",
        help="Also try out what only a write shows: the conditions of an object store. Without it nothing is written.",
    ),
]
Lock = Annotated[
    str | None,
    typer.Option("--lock", metavar="NAME", help="Also look whether the account may use the keys of this lock (Redis)."),
]


def doctor(
    services: Services, store: Store = None, write_probe: WriteProbe = False, lock: Lock = None, json: Json = False
) -> int:
    """Say of each service what is wrong, and what to change.

    It examines each one that an option or the environment names.

    Exit status: 0 nothing is wrong, 1 warnings, 2 something is wrong, 69 something could not be looked at.
    """
    work = _work(services, store, write_probe=write_probe, lock=lock)
    if not work:
        raise NoUrl(
            "no URL says what to examine. Pass --redis, --redlock, --database, --store, --etcd or --zookeeper with a "
            "URL, or set FENCING_REDIS_URL, FENCING_DATABASE_URL or one like them"
        )
    examined, refused = [], []
    for service, source, examine in work:
        try:
            findings = _findings(examine)
        except (TypeError, ValueError) as error:
            refused.append(f"{source}: {error}")
            findings = [Finding("unknown", f"its URL is wrong: {error}", change=f"correct {source}", page=URLS)]
        examined.append(Examined(service, tuple(findings)))
    if len(refused) == len(work):
        raise ValueError("; ".join(refused))
    if json:
        say_json([found for each in examined for found in each.as_json()])
    else:
        show(examined)
    return status_of(examined)


Examination = Callable[[], Iterable[Finding]]


def _work(
    services: Services, store: str | None, *, write_probe: bool, lock: str | None
) -> list[tuple[str, str, Examination]]:
    """Return what to examine: each service once, with its name, and what names it."""
    named = {**services.found, **services.given}
    work: dict[str, tuple[str, Examination]] = {}
    for name in ("coordinator", "redis", "redlock", "database", "etcd", "zookeeper"):
        url = named.get(name)
        if isinstance(url, str):
            work[redacted(url)] = services.sources[name], partial(_examine, url, lock)
        elif url is not None:
            work[" ".join(map(redacted, url))] = services.sources[name], partial(_redlock, url, lock)
    if services.local:
        url = f"sqlite:///{local_file()}"
        work[url] = "--local", partial(_examine, url, lock)
    if store is not None:
        source = "the variable FENCING_STORE_URL" if store == os.environ.get("FENCING_STORE_URL") else "--store"
        work[redacted(store)] = source, partial(_store, store, write_probe)
    return [(service, source, examine) for service, (source, examine) in work.items()]


def _examine(url: str, lock: str | None) -> Iterable[Finding]:
    scheme = scheme_of(url).partition("+")[0]
    if scheme in ("redis", "rediss", "unix"):
        return _redis(url, lock)
    if scheme in ("postgresql", "postgres", "mysql", "mariadb", "sqlite"):
        return _database(url)
    if scheme in ("etcd", "etcds"):
        return _etcd(url)
    if scheme == "zookeeper":
        return _zookeeper(url)
    return [
        Finding(
            "unknown",
            f"{scheme}:// is of another package",
            "The doctor knows no such service.",
            "look at it with its own tools",
            PAGE,
        )
    ]


def _redis(url: str, lock: str | None) -> Iterable[Finding]:
    from fencing.cli.doctor import redis  # only users of Redis have its client; so it is with the others

    return redis.examine(url, lock)


def _redlock(urls: Iterable[str], lock: str | None) -> Iterable[Finding]:
    from fencing.cli.doctor import redlock

    return redlock.examine(list(urls), lock)


def _database(url: str) -> Iterable[Finding]:
    from fencing.cli.doctor import databases

    return databases.examine(url)


def _store(url: str, write_probe: bool) -> Iterable[Finding]:
    from fencing.cli.doctor import stores

    scheme_of(url)
    return stores.examine(url, write_probe=write_probe)


def _etcd(url: str) -> Iterable[Finding]:
    from fencing.cli.doctor import etcd

    return etcd.examine(url)


def _zookeeper(url: str) -> Iterable[Finding]:
    from fencing.cli.doctor import zookeeper

    return zookeeper.examine(url)


RECHECK = "see that it runs, and that address, user and password are right"


def _findings(examine: Examination) -> list[Finding]:
    """Return what an examination finds, each fact once; where it breaks off, what it had found, and why.

    Raises:
        TypeError, ValueError: the URL is wrong.
    """
    found: list[Finding] = []
    try:
        for finding in examine():
            said = replace(finding, what=of_commands(finding.what), change=of_commands(finding.change))
            if said not in found:
                found.append(said)
    except NotExamined as error:
        found.append(Finding("unknown", redacted(str(error)), change=RECHECK, page=PAGE))
    except ModuleNotFoundError as error:
        change = "install it, as the message says"
        found.append(Finding("unknown", f"its client is not installed: {error}", change=change, page=PAGE))
    except (FencingError, OSError) as error:
        found.append(Finding("unknown", redacted(str(error)), change=RECHECK, page=PAGE))
    return found


def show(examined: Iterable[Examined]) -> None:
    """Print what was found, in groups of 80 columns. A terminal gets styles, unless the environment forbids it."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False, width=WIDTH)
    with console.capture() as captured:  # it would take a closed pipe for a status of its own
        for number, each in enumerate(examined):
            console.print(*([""] * bool(number)), each.service, sep="\n", soft_wrap=True)
            for finding in each.findings:
                first, *more = _lines_of(finding)
                label = Text.assemble((f"  {finding.level:<8}", LEVELS[finding.level]), first)
                console.print(label, *[INDENT + line for line in more], sep="\n", soft_wrap=True)
    say(captured.get().rstrip("\n"))


def _lines_of(finding: Finding) -> list[str]:
    """Return what is shown of a finding; of one that is right, what it is alone."""
    lines = _wrapped(finding.what)
    if finding.level == "ok":
        return lines
    change, *commands = finding.change.splitlines() or [""]
    for text in (finding.why, change and f"Change: {change}"):
        lines += _wrapped(text)
    return [*lines, *[f"  {command}" for command in commands], *([finding.page] if finding.page else [])]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH - len(INDENT), break_long_words=False, break_on_hyphens=False)
