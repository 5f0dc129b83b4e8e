"""The commands, and the exit status of each error."""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import Annotated

import typer

from fencing import (
    CoordinatorUnavailable,
    GuardNotEnforceable,
    GuardUnavailable,
    LeaseLost,
    MarkImplausible,
    NotAcquired,
    OutcomeUnknown,
    StaleFence,
    TooOld,
    UnclaimedFence,
)
from fencing.cli import databases, holders, objects, status
from fencing.cli import run as running
from fencing.cli.doctor import command as doctors
from fencing.cli.output import ClosedPipe, say, warn
from fencing.cli.services import NoUrl, takes_services

app = typer.Typer(
    name="fencing",
    help="Run commands under locks with fencing tokens, and look after locks and guards.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

STATUS_OF = (
    (NoUrl, status.CONFIG),
    (NotAcquired, status.BUSY),
    ((LeaseLost, StaleFence, UnclaimedFence), status.LOST),
    (
        (CoordinatorUnavailable, GuardUnavailable, GuardNotEnforceable, OutcomeUnknown, MarkImplausible),
        status.UNAVAILABLE,
    ),
    ((TypeError, ValueError, TooOld), status.USAGE),
    (ModuleNotFoundError, status.UNAVAILABLE),
)
"""The exit status of an error that a command has raised. The message of each says what to do."""


def _print_version(wanted: bool) -> None:
    if wanted:
        import fencing

        say(f"fencing {fencing.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _main(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        say(context.get_help())
        raise typer.Exit(status.USAGE)


app.command("holder")(takes_services(holders.holder))
app.command("run")(takes_services(running.run))
app.command("list")(takes_services(holders.list_))
app.command("free")(takes_services(holders.free))
app.command("watch")(takes_services(holders.watch))
app.command("doctor")(takes_services(doctors.doctor))

app.command("marks")(databases.marks)
app.command("verify")(databases.verify)
app.command("prune")(databases.prune)
app.command("enforce")(databases.enforce)
app.command("unenforce")(databases.unenforce)
app.command("create-tables")(databases.create_tables)
app.command("sql")(databases.sql)

_objects = typer.Typer(help="Look after what guards keep in an object store.")
_objects.command("verify")(objects.verify)
_objects.command("history")(objects.history)
_objects.command("collect")(takes_services(objects.collect))
app.add_typer(_objects, name="objects")


_EPIPE_IN_TYPER = 1
"""With it typer ends the process where its own texts find no reader."""


def _end_unread() -> int:
    """Return the status of a command whose output has no reader any more, as in: fencing list | head."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python fails as it flushes at its end
    return status.OF_SIGNAL + signal.SIGPIPE


def run(arguments: list[str] | None = None) -> int:
    """Run a command, and return its exit status."""
    if sys.stdout is None:  # it was closed, as by >&-
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the end
    logging.getLogger("kazoo").setLevel(logging.ERROR)  # it logs each try to connect
    try:
        result = app(arguments, prog_name="fencing", standalone_mode=False)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        text, command = error.format_message(), context.command_path if context else "fencing"
        warn(f"{text}{'' if text.endswith(('.', '?')) else '.'} See: {command} --help")
        return status.USAGE
    except typer.Abort:
        return status.OF_SIGNAL + signal.SIGINT
    except ClosedPipe:
        return _end_unread()
    except OSError as error:  # a full disk, for instance
        warn(f"the output cannot be written: {error}")
        _end_unread()
        return status.IO_ERROR
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) and ended.code != _EPIPE_IN_TYPER else _end_unread()
    except Exception as error:
        for kinds, its_status in STATUS_OF:
            if isinstance(error, kinds):
                hint = "; fencing create-tables URL does that" if "create_tables()" in str(error) else ""
                warn(f"{error}{hint}")
                return its_status
        raise
    return result if isinstance(result, int) else 0
