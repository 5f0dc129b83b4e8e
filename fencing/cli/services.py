"""Which services a command uses: URLs from options, files and the environment."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from fencing import Coordinator, connect
from fencing.cli.files import require_file
from fencing.cli.output import warn
from fencing.locks.urls import has_secret, redacted

PANEL = "Where the locks are"
MAX_FILE = 65_536
"""How many bytes of a file with a URL are read."""


class NoUrl(Exception):
    """No option and no variable names the service."""


class Kind(NamedTuple):
    """A service that may be named."""

    name: str
    variable: str
    help: str
    such_as: str

    @property
    def option(self) -> str:
        """How it is named on the command line."""
        return f"--{self.name}"


KINDS = (
    Kind("coordinator", "FENCING_COORDINATOR_URL", "A coordinator of any kind.", "rediss+cluster://h1,h2"),
    Kind(
        "redis",
        "FENCING_REDIS_URL",
        "A Redis.",
        "redis://localhost/0, redis+cluster://h1,h2, redis+sentinel://h1,h2/service",
    ),
    Kind("etcd", "FENCING_ETCD_URL", "An etcd.", "etcd://host1,host2"),
    Kind("zookeeper", "FENCING_ZOOKEEPER_URL", "A ZooKeeper.", "zookeeper://host1,host2"),
    Kind("database", "FENCING_DATABASE_URL", "A SQL database.", "postgresql://user@host/database"),
)
REDLOCK = Kind("redlock", "FENCING_REDLOCK_URLS", "A node of Redlock: three at least.", "redis://host1 redis://host2 …")


@dataclass(frozen=True)
class Services:
    """The URLs that a command got.

    Attributes:
        given: by the name of the kind: those of options and their files; of Redlock a tuple.
        found: the same, of the environment.
        local: whether ``--local`` is set.
        sources: by the name of the kind: the option, the file or the variable that has its URL.
        has_guard: whether ``--database`` names the guard of ``--once``, and so may stand beside ``--local``.
    """

    given: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    found: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    local: bool = False
    sources: Mapping[str, str] = field(default_factory=dict)
    has_guard: bool = False

    @property
    def url(self) -> str | tuple[str, ...]:
        """The URL of the coordinator, or those of Redlock.

        Options count before the environment. Of several, the first of: coordinator, redlock, redis, etcd, zookeeper,
        database. So a database named beside another service is for guards.

        Raises:
            NoUrl: there is none.
            BadParameter: ``--local`` stands beside another one.
        """
        return self._chosen()[1]

    def _chosen(self) -> tuple[str, str | tuple[str, ...]]:
        order = ("coordinator", "redlock", "redis", "etcd", "zookeeper", "database")
        if self.local:
            for name in order:
                if name in self.given and not (name == "database" and self.has_guard):
                    raise typer.BadParameter(f"pass --local or {self.sources[name]}, not both")
            return "--local", local_url()
        for urls in (self.given, self.found):
            for name in order:
                if name in urls:
                    return self.sources[name], urls[name]
        variables = ", ".join(kind.variable for kind in (*KINDS, REDLOCK))
        raise NoUrl(
            "no URL says where the locks are. Set one of "
            f"{variables}; or pass --redis redis://localhost/0 or one like it; or --local, for locks between the "
            "processes of this user on this machine alone"
        )

    def connect(self, *, reads_only: bool = False, **options: Any) -> Coordinator:
        """Return a new coordinator of it.

        Args:
            reads_only: whether the command only reads, so that it makes no file.
            options: those of the coordinator.

        Raises:
            NoFile: the file to look at is not there.
        """
        source, url = self._chosen()
        with named_as(source):
            if reads_only and isinstance(url, str) and not self.local:
                require_file(url)
            return connect(url if isinstance(url, str) else list(url), **options)

    def named(self, name: str) -> str | None:
        """Return the URL of one kind, or None."""
        url = self.given.get(name, self.found.get(name))
        return url if isinstance(url, str) else None


def local_file() -> Path:
    """Return the path of the database of ``--local``, in the user's folder for state.

    Source of the folder: XDG Base Directory Specification 0.8, ``XDG_STATE_HOME``.
    """
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "fencing" / "locks.db"


def guards_of(urls: list[str] | None, files: list[Path] | None) -> dict[str, Any]:
    """Return new guards by their URLs, from ``--guard`` and ``--guard-file``."""
    from fencing.cli.guards import guard_of

    made = {}
    for url in urls or ():
        _warn_of_secret("--guard", url)
        with named_as("--guard"):
            made[url] = guard_of(url)
    for path in files or ():
        url = _read_url(path)
        with named_as(f"the file {path}"):
            made[url] = guard_of(url)
    return made


@contextmanager
def named_as(source: str) -> Iterator[None]:
    """Say of a wrong URL whence it came."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ValueError(f"{source}: {error}") from error


def local_url() -> str:
    """Return the URL of the database of ``--local``, and make its folder."""
    file = local_file()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return f"sqlite:///{file}"


def takes_services(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options that name services. It gets them together, as its first argument."""
    signature = inspect.signature(command, eval_str=True)
    _, *own = signature.parameters.values()

    @functools.wraps(command)
    def with_services(**values: Any) -> int:
        return command(_services_of(values), **values)

    with_services.__signature__ = signature.replace(parameters=[*own, *_OPTIONS])  # type: ignore[attr-defined]
    with_services.__annotations__ = {each.name: each.annotation for each in (*own, *_OPTIONS)}
    return with_services


def _services_of(values: dict[str, Any]) -> Services:
    """Take the options out of the values of a command."""
    given: dict[str, str | tuple[str, ...]] = {}
    found: dict[str, str | tuple[str, ...]] = {}
    sources: dict[str, str] = {}
    for kind in KINDS:
        url, path = values.pop(kind.name), values.pop(f"{kind.name}_file")
        if url is not None and path is not None:
            raise typer.BadParameter(f"pass {kind.option} or {kind.option}-file, not both")
        if url is not None:
            _warn_of_secret(kind.option, url)
            given[kind.name], sources[kind.name] = url, kind.option
        elif path is not None:
            given[kind.name], sources[kind.name] = _read_url(path), f"{kind.option}-file {path}"
        elif os.environ.get(kind.variable):
            found[kind.name], sources[kind.name] = os.environ[kind.variable], f"the variable {kind.variable}"
    nodes = values.pop(REDLOCK.name)
    if nodes:
        for url in nodes:
            _warn_of_secret(REDLOCK.option, url)
        given[REDLOCK.name], sources[REDLOCK.name] = tuple(nodes), REDLOCK.option
    elif os.environ.get(REDLOCK.variable):
        found[REDLOCK.name] = tuple(os.environ[REDLOCK.variable].split())
        sources[REDLOCK.name] = f"the variable {REDLOCK.variable}"
    return Services(given, found, values.pop("local"), sources, has_guard=values.get("once") is not None)


def _warn_of_secret(option: str, url: str) -> None:
    if has_secret(url):
        warn(
            f"{option} {redacted(url)} has a password, which every list of processes shows: "
            f"put the URL into a file for {option}-file, or into the environment"
        )


def _read_url(path: Path) -> str:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE + 1).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"the file {path} cannot be read: {error}") from error
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) != 1 or len(text) > MAX_FILE:
        raise typer.BadParameter(f"the file {path} must have one line, a URL, not {len(lines)}")
    return lines[0]


def _option(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _options() -> list[inspect.Parameter]:
    made = []
    for kind in KINDS:
        shown = f"{kind.help} Such as {kind.such_as}; else ${kind.variable}."
        url = typer.Option(kind.option, metavar="URL", help=shown, rich_help_panel=PANEL, show_default=False)
        file = typer.Option(
            f"{kind.option}-file",
            metavar="FILE",
            help=f"A file with the URL of {kind.option}.",
            rich_help_panel=PANEL,
            show_default=False,
        )
        made += [
            _option(kind.name, Annotated[str | None, url]),
            _option(f"{kind.name}_file", Annotated[Path | None, file]),
        ]
    shown = f"{REDLOCK.help} Repeat it; else ${REDLOCK.variable}, with blanks."
    nodes = typer.Option(REDLOCK.option, metavar="URL", help=shown, rich_help_panel=PANEL, show_default=False)
    local = typer.Option(
        "--local", help="Locks between this user's processes on this machine, in a SQLite file.", rich_help_panel=PANEL
    )
    return [
        *made,
        _option(REDLOCK.name, Annotated[list[str] | None, nodes]),
        _option("local", Annotated[bool, local], False),
    ]


_OPTIONS = _options()
