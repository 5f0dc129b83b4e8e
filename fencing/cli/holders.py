"""Who holds which lock: ``fencing holder``, ``list``, ``free`` and ``watch``."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fencing import Coordinator, CoordinatorUnavailable, GuardNotEnforceable, GuardUnavailable, Holder
from fencing.cli import status
from fencing.cli.display import duration, ended_by_sigterm, say_rows, shown, stamp, table
from fencing.cli.options import within
from fencing.cli.output import ClosedPipe, say, say_json, warn
from fencing.cli.services import Services, guards_of

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the lock.")]
Pattern = Annotated[str, typer.Argument(metavar="PATTERN", help="* stands for any characters, ? for one: 'orders:*'.")]
Json = Annotated[bool, typer.Option("--json", help="JSON, for programs: docs/operations/command-line.md")]
Guards = Annotated[
    list[str] | None,
    typer.Option("--guard", metavar="URL", help="A guard at which the holder is shut out. Repeat it."),
]
GuardFiles = Annotated[
    list[Path] | None,
    typer.Option("--guard-file", metavar="FILE", help="A file with the URL of a guard. Repeat it.", show_default=False),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Interval = Annotated[
    float,
    typer.Option(metavar="SECONDS", callback=within("seconds, 0.1 or more", 0.1), help="How often to look."),
]

MOST_FREE = 1000
"""How many names that have become free a watch remembers, with their hand-offs."""


def holder(services: Services, name: Name, json: Json = False) -> int:
    """Show who holds a lock. Status 1: it is free."""
    with services.connect(reads_only=True) as coordinator:
        found = coordinator.holder(name)
    if json:
        say_json(None if found is None else as_json(found))
    elif found is None:
        say(f"{shown(name)} is free")
    else:
        say(f"{shown(name)} is held by {_owner(found)}")
        for label, text in _facts(found):
            say(f"  {label:<14}{text}")
    return status.NOT_THERE if found is None else 0


def list_(services: Services, pattern: Pattern = "*", json: Json = False) -> int:
    """List the locks that are held, and their holders."""
    with services.connect(reads_only=True) as coordinator:
        found = coordinator.holders(pattern)
        if json:
            say_json([as_json(each, name) for name, each in found])
        else:
            say_rows(
                ("NAME", "HOLDER", "NUMBER", "HELD FOR", "FREES ITSELF", "WAITING"),
                (
                    (name, _owner(each), _number(each), _held_for(each), _frees_itself(each), _waiting(each))
                    for name, each in found
                ),
            )
    return 0


def free(
    services: Services,
    name: Name,
    guard: Guards = None,
    guard_file: GuardFiles = None,
    yes: Yes = False,
    json: Json = False,
) -> int:
    """Take a lock from its holder, and free it. Status 1: the holder keeps it."""
    if not yes and not sys.stdin.isatty():
        raise typer.BadParameter("there is no terminal to ask whether to free it: pass --yes if you are sure")
    guards = list(guards_of(guard, guard_file).values())
    with services.connect(reads_only=True, guards=guards) as coordinator:
        found = coordinator.holder(name)
        if found is None and not guards:
            if json:
                say_json(_freed(name, None, None))
            else:
                say(f"{shown(name)} is free; with --guard, its earlier holders are shut out")
            return 0
        if not yes and not _agreed(name, found, has_guards=bool(guards)):
            warn(f"{shown(name)} stays as it is")
            return status.NOT_THERE
        done = _shut_out(coordinator, name) if found is None else _force_out(coordinator, name, found)
    if done is None:
        warn(f"{shown(name)} has changed hands meanwhile, and stays as it is: look again with fencing holder")
    if json:
        say_json(_freed(name, found, done))
    elif done is not None:
        say(f"{shown(name)} is free; {_consequence(done)}")
    return status.NOT_THERE if done is None else 0


@dataclass(frozen=True)
class _Done:
    """What ``free`` has done: the new number, and whether guards know it."""

    number: int
    fenced: bool


def _force_out(coordinator: Coordinator, name: str, found: Holder) -> _Done | None:
    """Force out the grant that was shown, and no other one."""
    try:
        forced = coordinator.force_release(name, holder=found)
    except (GuardNotEnforceable, GuardUnavailable):
        warn(f"{shown(name)} was taken from its holder and is free, but a guard does not shut the holder out, because:")
        raise
    return None if forced is None else _Done(forced.fence.number, forced.fenced)


def _shut_out(coordinator: Coordinator, name: str) -> _Done | None:
    """Claim a newer fence of a free lock at the guards. None: somebody has taken the lock meanwhile."""
    lease = coordinator.try_acquire(name)
    if lease is None:
        return None
    with lease:
        return _Done(lease.fence.number, True)


def _agreed(name: str, found: Holder | None, *, has_guards: bool) -> bool:
    if found is None:
        return typer.confirm(f"{shown(name)} is free. Shut out its earlier holders at the guards?", err=True)
    facts = ", ".join(f"{label} {text}" for label, text in _facts(found))
    print(f"{shown(name)} is held by {_owner(found)}: {facts}.", file=sys.stderr)
    if not has_guards:
        print("Without --guard it can still write until a newer holder claims.", file=sys.stderr)
    return typer.confirm("Take the lock from it?", err=True)


def _consequence(done: _Done) -> str:
    if done.fenced:
        return f"the guards have admitted {done.number}, and refuse everything older"
    return "its former holder can still write until a newer holder claims: --guard URL shuts it out"


def _freed(name: str, former: Holder | None, done: _Done | None) -> dict[str, object]:
    return {
        "name": name,
        "holder": None if former is None else as_json(former),
        "freed": done is not None,
        "number": None if done is None else done.number,
        "fenced": done is not None and done.fenced,
    }


@dataclass
class _Seen:
    """What a watch has seen of one name.

    Attributes:
        holder: who has it now; None: it is free.
        grant: the last one that was seen.
        hand_offs: how often another grant was seen after it.
    """

    holder: Holder | None
    grant: tuple[object, ...]
    hand_offs: int = 0


Event = Literal["held", "handed over", "free", "no answer"]


def watch(services: Services, pattern: Pattern = "*", interval: Interval = 1.0, json: Json = False) -> int:
    """Show the locks that are held, and each change."""
    seen: dict[str, _Seen] = {}
    with ended_by_sigterm(), services.connect(reads_only=True) as coordinator:
        read_changes = _reader_of_changes(coordinator, pattern, seen)
        if json or not sys.stdout.isatty():
            say_event = _say_json_event if json else _say_event
            while True:
                for event, name in read_changes():
                    say_event(event, name, seen.get(name))
                _pause(interval)
        from rich.live import Live

        with Live(auto_refresh=False) as live:
            while True:
                events = read_changes()
                unanswered = [name for event, name in events if event == "no answer"]
                live.update(_picture(pattern, seen, unanswered), refresh=True)
                _pause(interval)


def _reader_of_changes(
    coordinator: Coordinator, pattern: str, seen: dict[str, _Seen]
) -> Callable[[], list[tuple[Event, str]]]:
    """Return a function that looks once, notes what it has seen, and returns what has changed.

    A service that has answered once may be silent for a while: a failover, for instance. That is an event, too.
    """
    has_answered = False

    def read_changes() -> list[tuple[Event, str]]:
        nonlocal has_answered
        try:
            now = dict(coordinator.holders(pattern))
        except CoordinatorUnavailable as error:
            if not has_answered:
                raise
            return [("no answer", str(error))]
        has_answered = True
        return list(_changes(seen, now))

    return read_changes


def _changes(seen: dict[str, _Seen], now: dict[str, Holder]) -> Iterator[tuple[Event, str]]:
    """Note who holds what now, and yield what is different."""
    for name, found in now.items():
        grant = (found.number, found.digest, found.owner)
        known = seen.get(name)
        if known is None:
            seen[name] = _Seen(found, grant)
            yield "held", name
            continue
        was_free, known.holder = known.holder is None, found
        changed = known.grant != grant
        if changed:
            known.grant = grant
            known.hand_offs += 1
        if was_free:
            yield "held", name
        elif changed:
            yield "handed over", name
    for name in [name for name, each in seen.items() if each.holder is not None and name not in now]:
        known = seen.pop(name)
        known.holder = None
        seen[name] = known  # as the last one: those that became free long ago are forgotten first
        yield "free", name
    have_no_holder = [name for name, each in seen.items() if each.holder is None]
    for name in have_no_holder[: max(0, len(have_no_holder) - MOST_FREE)]:
        del seen[name]


def _say_event(event: Event, name: str, seen: _Seen | None) -> None:
    if seen is None:
        say(f"{stamp()} {event}: {shown(name)}")
        return
    details = f"hand-offs: {seen.hand_offs}"
    if seen.holder is not None:
        facts = f"by {_owner(seen.holder)}, number {_number(seen.holder)}, for {_held_for(seen.holder)}"
        details = f"{facts}, waiting: {_waiting(seen.holder)}, {details}"
    say(f"{stamp()} {shown(name)} {event}, {details}")


def _say_json_event(event: Event, name: str, seen: _Seen | None) -> None:
    document: dict[str, object] = {"at": stamp(), "event": event}
    if seen is None:
        say_json(document | {"error": name})
    else:
        holder = None if seen.holder is None else as_json(seen.holder)
        say_json(document | {"name": name, "holder": holder, "hand_offs": seen.hand_offs})


def _picture(pattern: str, seen: dict[str, _Seen], unanswered: list[str]) -> Any:
    from rich.console import Group
    from rich.text import Text

    held = sorted((name, each) for name, each in seen.items() if each.holder is not None)
    free = [(name, each) for name, each in reversed(seen.items()) if each.holder is None]
    rows = [
        (name, _owner(each.holder), _number(each.holder), _held_for(each.holder), _waiting(each.holder), each.hand_offs)
        if each.holder is not None
        else (name, "free", "", "", "", each.hand_offs)
        for name, each in (*held, *free)
    ]
    line = f"{stamp()}  {len(held)} held of {shown(pattern)}  Ctrl-C ends"
    errors = [Text(f"no answer: {shown(error)}") for error in unanswered]
    return Group(Text(line), *errors, table(("NAME", "HOLDER", "NUMBER", "HELD FOR", "WAITING", "HAND-OFFS"), rows))


def _pause(seconds: float) -> None:
    """Wait. Raise ClosedPipe as soon as nobody reads what we print, for there may never be another line."""
    if not hasattr(select, "poll"):  # Windows
        time.sleep(seconds)
        return
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if poll.poll(seconds * 1000):
        raise ClosedPipe


def as_json(holder: Holder, name: str | None = None) -> dict[str, object]:
    """Return what ``--json`` shows of a holder."""
    document: dict[str, object] = {
        "owner": holder.owner,
        "number": holder.number,
        "held_for": holder.held_for,
        "remaining": holder.remaining,
        "expires": holder.expires,
        "released": holder.released,
        "waiting": holder.waiting,
    }
    return document if name is None else {"name": name, **document}


def _facts(holder: Holder) -> list[tuple[str, str]]:
    facts = [
        ("number", _number(holder)),
        ("held for", _held_for(holder)),
        ("frees itself", _frees_itself(holder)),
        ("waiting", _waiting(holder)),
    ]
    return [*facts, ("released", "yes, and kept for at_least")] if holder.released else facts


def _owner(holder: Holder) -> str:
    return "another library" if holder.owner is None else shown(holder.owner)


def _number(holder: Holder) -> str:
    return "not known" if holder.number is None else str(holder.number)


def _held_for(holder: Holder) -> str:
    return "not known" if holder.held_for is None else duration(holder.held_for)


def _waiting(holder: Holder) -> str:
    return "not known" if holder.waiting is None else str(holder.waiting)


def _frees_itself(holder: Holder) -> str:
    if holder.remaining is not None:
        return f"in {duration(holder.remaining)}"
    return "at a time not known" if holder.expires else "never"
