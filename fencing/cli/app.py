"""The commands, and the exit status of each error."""

from __future__ import annotations

import signal
from typing import Annotated

import typer

from fencing import (
    CoordinatorUnavailable,
    GuardNotEnforceable,
    GuardUnavailable,
    LeaseLost,
    NotAcquired,
    OutcomeUnknown,
    StaleFence,
    UnclaimedFence,
)
from fencing.cli import holders, status
from fencing.cli.doctor import command as doctors
from fencing.cli.output import say, warn
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
    ((CoordinatorUnavailable, GuardUnavailable, GuardNotEnforceable, OutcomeUnknown), status.UNAVAILABLE),
    ((TypeError, ValueError), status.USAGE),
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
app.command("doctor")(takes_services(doctors.doctor))


def run(arguments: list[str] | None = None) -> int:
    """Run a command, and return its exit status."""
    try:
        result = app(arguments, prog_name="fencing", standalone_mode=False)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        warn(f"{error.format_message()} See: {context.command_path if context else 'fencing'} --help")
        return status.USAGE
    except typer.Abort:
        return status.OF_SIGNAL + signal.SIGINT
    except SystemExit:  # typer's own, where nobody reads any more, as in: fencing list | head
        return status.OF_SIGNAL + signal.SIGPIPE
    except Exception as error:
        for kinds, its_status in STATUS_OF:
            if isinstance(error, kinds):
                warn(str(error))
                return its_status
        raise
    return result if isinstance(result, int) else 0
