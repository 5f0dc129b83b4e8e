"""The commands, and the exit status of each error."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated

import typer
from typer._click.exceptions import NoArgsIsHelpError

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
    __version__,
)
from fencing.cli import holders, status
from fencing.cli import run as running
from fencing.cli.output import say, warn
from fencing.cli.services import NoUrl, takes_services

app = typer.Typer(
    name="fencing",
    help="Run commands under locks with fencing tokens, and look after locks and guards.",
    no_args_is_help=True,
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
        say(f"fencing {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command("holder")(takes_services(holders.holder))
app.command("run")(takes_services(running.run))


def run(arguments: list[str] | None = None) -> int:
    """Run a command, and return its exit status."""
    try:
        result = app(arguments, standalone_mode=False)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        if isinstance(error, NoArgsIsHelpError):
            say(error.format_message())
        else:
            where = f"{context.command_path} --help" if context else "fencing --help"
            warn(f"{error.format_message()} See {where}")
        return status.USAGE
    except typer.Abort:
        return status.OF_SIGNAL + signal.SIGINT
    except BrokenPipeError:  # nobody reads any more, as in: fencing list | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python fails as it flushes at its end
        return status.OF_SIGNAL + signal.SIGPIPE
    except Exception as error:
        for kinds, its_status in STATUS_OF:
            if isinstance(error, kinds):
                warn(str(error))
                return its_status
        raise
    return result if isinstance(result, int) else 0
