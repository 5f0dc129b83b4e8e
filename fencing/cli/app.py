"""The commands, and the exit status of each error."""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import Annotated

import typer

from fencing.cli import databases, holders, objects, status
from fencing.cli import run as running
from fencing.cli.doctor import command as doctors
from fencing.cli.options import Command, CommandOfAnother, text_of
from fencing.cli.output import ClosedPipe, say, warn
from fencing.cli.services import takes_services
from fencing.cli.words import of_commands

app = typer.Typer(
    name="fencing",
    help="Run commands under locks with fencing tokens, and look after locks and guards.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


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


app.command("run", cls=CommandOfAnother)(takes_services(running.run))
app.command("holder", cls=Command)(takes_services(holders.holder))
app.command("list", cls=Command)(takes_services(holders.list_))
app.command("free", cls=Command)(takes_services(holders.free))
app.command("watch", cls=Command)(takes_services(holders.watch))
app.command("doctor", cls=Command)(takes_services(doctors.doctor))

app.command("marks", cls=Command)(databases.marks)
app.command("verify", cls=Command)(databases.verify)
app.command("prune", cls=Command)(databases.prune)
app.command("enforce", cls=Command)(databases.enforce)
app.command("unenforce", cls=Command)(databases.unenforce)
app.command("create-tables", cls=Command)(databases.create_tables)
app.command("sql", cls=Command)(databases.sql)

_objects = typer.Typer(help="Look after what guards keep in an object store.")
_objects.command("verify", cls=Command)(objects.verify)
_objects.command("history", cls=Command)(objects.history)
_objects.command("collect", cls=Command)(takes_services(objects.collect))
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
        warn(text_of(error))
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
    except Exception as error:  # noqa: BLE001 - status.of() raises it again if it is a fault of ours
        its_status = status.of(error)
        warn(of_commands(str(error)))
        return its_status
    return result if isinstance(result, int) else 0
