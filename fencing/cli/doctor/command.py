"""``fencing doctor``: examines each service that is named, and says what to change."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable
from typing import Annotated

import typer

from fencing.cli.doctor.findings import Examined, Finding, NotExamined, status_of
from fencing.cli.holders import Json
from fencing.cli.output import say, say_json
from fencing.cli.services import NoUrl, Services, local_file
from fencing.kernel.errors import FencingError
from fencing.locks.urls import redacted, scheme_of

WIDTH = 80
LEVELS = {"ok": "green", "warning": "yellow", "wrong": "bold red", "unknown": "magenta"}
"""The levels, and their styles on a terminal."""

INDENT = " " * 10
PAGE = "docs/operations/command-line.md#fencing-doctor"

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
    """Examine each service that an option or the environment names. Say what is right, what is wrong, what to change.

    Exit status: 0 nothing is wrong, 1 warnings, 2 something is wrong, 69 something could not be looked at.
    """
    work = _work(services, store, write_probe=write_probe, lock=lock)
    if not work:
        raise NoUrl(
            "no URL says what to examine. Pass --redis, --redlock, --database, --store, --etcd or --zookeeper with a "
            "URL, or set FENCING_REDIS_URL, FENCING_DATABASE_URL or one like them"
        )
    examined = [Examined(service, tuple(_findings(examine))) for service, examine in work]
    if json:
        say_json([found for each in examined for found in each.as_json()])
    else:
        show(examined)
    return status_of(examined)


Examination = Callable[[], Iterable[Finding]]


def _work(
    services: Services, store: str | None, *, write_probe: bool, lock: str | None
) -> list[tuple[str, Examination]]:
    """Return what to examine: each service once, with its name.

    Raises:
        ValueError: a URL is wrong.
    """
    named = {**services.found, **services.given}
    work: dict[str, Examination] = {}
    for name in ("coordinator", "redis", "redlock", "database", "etcd", "zookeeper"):
        url = named.get(name)
        if isinstance(url, str):
            work[redacted(url)] = _examination(url, lock)
        elif url is not None:
            work[" ".join(map(redacted, url))] = _redlock(url, lock)
    if services.local:
        url = f"sqlite:///{local_file()}"
        work[url] = _examination(url, lock)
    if store is not None:
        work[redacted(store)] = _store(store, write_probe)
    return list(work.items())


def _examination(url: str, lock: str | None) -> Examination:
    scheme = scheme_of(url).partition("+")[0]
    if scheme in ("redis", "rediss", "unix"):
        return lambda: _redis(url, lock)
    if scheme in ("postgresql", "postgres", "mysql", "mariadb", "sqlite"):
        return lambda: _database(url)
    if scheme in ("etcd", "etcds"):
        return lambda: _etcd(url)
    if scheme == "zookeeper":
        return lambda: _zookeeper(url)
    return lambda: [
        Finding("unknown", f"{scheme}:// is of another package", "The doctor knows no such service.", page=PAGE)
    ]


def _redis(url: str, lock: str | None) -> Iterable[Finding]:
    from fencing.cli.doctor import redis  # only users of Redis have its client; so it is with the others

    return redis.examine(url, lock)


def _redlock(urls: Iterable[str], lock: str | None) -> Examination:
    def examine() -> Iterable[Finding]:
        from fencing.cli.doctor import redlock

        return redlock.examine(list(urls), lock)

    return examine


def _database(url: str) -> Iterable[Finding]:
    from fencing.cli.doctor import databases

    return databases.examine(url)


def _store(url: str, write_probe: bool) -> Examination:
    def examine() -> Iterable[Finding]:
        from fencing.cli.doctor import stores

        return stores.examine(url, write_probe=write_probe)

    scheme_of(url)  # a wrong one is refused before anything is examined
    return examine


def _etcd(url: str) -> Iterable[Finding]:
    from fencing.cli.doctor import etcd

    return etcd.examine(url)


def _zookeeper(url: str) -> Iterable[Finding]:
    from fencing.cli.doctor import zookeeper

    return zookeeper.examine(url)


RECHECK = "see that it runs, and that address, user and password are right"


def _findings(examine: Examination) -> list[Finding]:
    """Return what an examination finds; where it breaks off, what it had found, and why."""
    found: list[Finding] = []
    try:
        for finding in examine():
            found.append(finding)  # noqa: PERF402 - what came before an error counts
    except NotExamined as error:
        found.append(Finding("unknown", redacted(str(error)), change=RECHECK, page=PAGE))
    except ModuleNotFoundError as error:
        change = f"install {error.name}" if error.name else "install it"
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
