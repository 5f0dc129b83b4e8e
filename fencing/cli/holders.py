"""Who holds which lock: ``fencing holder``."""

from __future__ import annotations

from typing import Annotated

import typer

from fencing import Holder
from fencing.cli.output import say, say_json
from fencing.cli.services import Services

Name = Annotated[str, typer.Argument(help="The name of the lock.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document: see docs/operations/command-line.md.")]


def holder(services: Services, name: Name, json: Json = False) -> int:
    """Show who holds a lock."""
    with services.connect() as coordinator:
        found = coordinator.holder(name)
    if json:
        say_json(None if found is None else as_json(found))
    elif found is None:
        say(f"{name} is free")
    else:
        say(f"{name} is held by {found.owner}")
    return 0


def as_json(holder: Holder) -> dict[str, object]:
    """Return what ``--json`` shows of a holder."""
    return {"number": holder.number, "owner": holder.owner}
