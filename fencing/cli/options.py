"""How the options of commands are read: what their values may be, what is said of a wrong one, and the help."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand

from fencing.cli.display import seconds_of
from fencing.locks.settings import MAX_OWNER_CHARACTERS, MAX_TTL, MIN_TTL

_KINDS = {"int": "a whole number", "float": "a number"}


def text_of(error: typer.TyperException) -> str:
    """Return what is wrong with a command's words, and where its help is. The text names the option."""
    parameter: Any = getattr(error, "param", None)
    cause: Any = error.__cause__
    found = cause.errors()[0] if hasattr(cause, "errors") else None  # of pydantic, which speaks to programmers
    text = error.format_message()
    if type(error) is typer.BadParameter and parameter is None:  # one of a command
        text = error.message
    elif parameter is not None and found is not None:
        kind = _KINDS.get(found["type"].partition("_")[0])
        said = f"takes {kind}, not {str(found['input'])!r:.100}" if kind else found["msg"].removeprefix("Value error, ")
        text = f"{_name_of(parameter)}{' ' if kind else ': '}{said}"
    elif parameter is not None and error.message[:1].islower():  # one of the checks below
        text = f"{_name_of(parameter)} {error.message}"
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "fencing"
    return f"{text}{'' if text.endswith(('.', '?')) else '.'} See: {command} --help"


def _name_of(parameter: Any) -> str:
    return str(parameter.opts[0]) if parameter.param_type_name == "option" else str(parameter.display_name_raw)


def within(words: str, least: float, most: float = math.inf, hint: str = "") -> Callable[[float | None], float | None]:
    """Return the check of an option whose value is a number from ``least`` to ``most``, and finite.

    Args:
        words: what it takes, for the message.
        least: the lowest.
        most: the highest.
        hint: ends the message.
    """

    def check(value: float | None) -> float | None:
        if value is not None and not (least <= value <= most and value < math.inf):
            raise typer.BadParameter(f"takes {words}, not {value:.15g}{hint and f'; {hint}'}")
        return value

    return check


_ANY, _YEAR = "seconds, 0 or more", f"{MAX_TTL:.0f} seconds, which is a year"

check_timeout = within(_ANY, 0, hint="--no-wait tries once, and without both the wait has no end")
check_wait = within(_ANY, 0, hint="0 tries once")
check_ttl = within(f"{MIN_TTL:g} to {_YEAR}", MIN_TTL, MAX_TTL, "after them, a crashed holder's lock frees itself")
check_at_least = within(f"0 to {_YEAR}", 0, MAX_TTL)
check_grace = within(_ANY, 0, hint="after them, what is left of the command is killed")
check_status = within("an exit status from 0 to 255", 0, 255)


def check_label(value: str | None) -> str | None:
    """Check what a holder is called."""
    if value is not None and not (value.isprintable() and 1 <= len(value) <= MAX_OWNER_CHARACTERS):
        raise typer.BadParameter(f"takes 1 to {MAX_OWNER_CHARACTERS} printable characters")
    return value


def check_age(value: str | None) -> str | None:
    """Check an age such as 90d."""
    if value is not None:
        _checked(seconds_of, value)
    return value


def check_key(value: str | None) -> str | None:
    """Check a key of what is done once."""
    from storage_guards import once

    if value is not None:
        _checked(once.check_key, value, "the key")
    return value


def check_schema(value: str | None) -> str | None:
    """Check the name of a schema."""
    from storage_guards.sql import schema

    if value is not None:
        _checked(schema.check_schema, value)
    return value


def _checked(check: Callable[..., object], *values: str) -> None:
    try:
        check(*values)
    except ValueError as error:
        raise typer.BadParameter(f"is wrong: {error}") from error


class Command(TyperCommand):
    """A command whose help fits 80 columns, and calls its arguments as its usage does."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the pieces of the line of usage."""
        return [re.sub("[{}]", "", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the command's own options, and those that each command has."""
        records = []
        each: Any
        for each in self.get_params(ctx):
            record = each.get_help_record(ctx)
            if record is not None and each.param_type_name == "argument":
                records.append(("Arguments", (each.display_name_raw, record[1])))
            elif record is not None:
                records.append((getattr(each, "rich_help_panel", None) or "Options", record))
        order = dict.fromkeys(panel for panel, _ in records)
        for panel in sorted(order, key=["Arguments", "Options", *order].index):
            with formatter.section(panel):
                formatter.write_dl([record for of, record in records if of == panel])


class CommandOfAnother(Command):
    """A command whose last argument is a command line: from its first word on, options are the other command's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words. Where there is no ``--``, put it in front of the other command."""
        arguments = sum(each.param_type_name == "argument" for each in self.params)
        takes_value = {name for each in self.params if not getattr(each, "is_flag", True) for name in each.opts}
        place = 0
        while place < len(args) and args[place] != "--":
            if args[place].startswith("-"):
                place += args[place] in takes_value
            else:
                arguments -= 1
                if not arguments:
                    args = [*args[:place], "--", *args[place:]]
                    break
            place += 1
        return super().parse_args(ctx, args)
