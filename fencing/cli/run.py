"""A command under a lock: ``fencing run``."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from fencing import (
    AlreadyDone,
    Coordinator,
    GuardNotEnforceable,
    GuardUnavailable,
    Lease,
    LeaseLost,
    NotAcquired,
    OutcomeUnknown,
    StaleFence,
    UnclaimedFence,
)
from fencing.cli import status
from fencing.cli.child import NotStarted, Runner
from fencing.cli.guards import guard_of
from fencing.cli.options import (
    check_at_least,
    check_grace,
    check_key,
    check_label,
    check_status,
    check_timeout,
    check_ttl,
    within,
)
from fencing.cli.output import warn
from fencing.cli.services import Services, guards_of
from fencing.cli.signals import Ended, Signals
from fencing.cli.words import of_commands
from fencing.kernel.fence import FENCE_VARIABLE
from fencing.locks.any_slot import MOST_SLOTS

NUMBER_VARIABLE, SLOT_VARIABLE = "FENCING_NUMBER", "FENCING_SLOT"

NOTE_ATTEMPTS = 3
"""How often the row of ``--once`` is written where the database does not answer."""

NOTE_PAUSE_SECONDS = 1.0

LOSSES = (LeaseLost, StaleFence, UnclaimedFence)

_is_secret = re.compile(r"FENCING_\w*URLS?").fullmatch

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the lock.")]
Command = Annotated[
    list[str], typer.Argument(metavar="COMMAND", help="The command and its arguments. Put -- in front of it.")
]
Timeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS", callback=check_timeout, help="How long to wait for the lock. Default: without end."
    ),
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Try once, as --timeout 0.")]
Ttl = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", callback=check_ttl, help="The lock frees itself after it. Default: 10."),
]
Guards = Annotated[
    list[str] | None,
    typer.Option("--guard", metavar="URL", help="A storage that refuses older holders. Repeat it.", show_default=False),
]
GuardFiles = Annotated[
    list[Path] | None,
    typer.Option("--guard-file", metavar="FILE", help="A file with the URL of a guard. Repeat it.", show_default=False),
]
Grace = Annotated[
    float,
    typer.Option(metavar="SECONDS", callback=check_grace, help="From SIGTERM to SIGKILL, once the lock is lost."),
]
Label = Annotated[
    str | None,
    typer.Option(metavar="TEXT", callback=check_label, help="What 'fencing holder' shows. Default: host:process."),
]
Shell = Annotated[bool, typer.Option("--shell", help="COMMAND is one text, for /bin/sh.")]
SlotCount = Annotated[
    int | None,
    typer.Option(
        "--slots",
        metavar="COUNT",
        callback=within(f"a number from 1 to {MOST_SLOTS}", 1, MOST_SLOTS),
        help="So many may run at once.",
    ),
]
AtLeast = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS", callback=check_at_least, help="The lock stays taken so long, also after a shorter command."
    ),
]
Once = Annotated[
    str | None, typer.Option(metavar="KEY", callback=check_key, help="Never again for this KEY. It needs --database.")
]
Elect = Annotated[bool, typer.Option("--elect", help="For ever: wait to be elected, run, and again.")]
PassEnv = Annotated[bool, typer.Option("--pass-env", help="COMMAND gets the variables FENCING_…_URL, too.")]
BusyStatus = Annotated[
    int, typer.Option(metavar="STATUS", callback=check_status, help="The exit status if the lock was not to be had.")
]
LostStatus = Annotated[
    int, typer.Option(metavar="STATUS", callback=check_status, help="The exit status if it was lost.")
]


def run(
    services: Services,
    name: Name,
    command: Command,
    timeout: Timeout = None,
    no_wait: NoWait = False,
    ttl: Ttl = None,
    guard: Guards = None,
    guard_file: GuardFiles = None,
    grace: Grace = 10.0,
    label: Label = None,
    shell: Shell = False,
    slots: SlotCount = None,
    at_least: AtLeast = None,
    once: Once = None,
    elect: Elect = False,
    pass_env: PassEnv = False,
    busy_status: BusyStatus = status.BUSY,
    lost_status: LostStatus = status.LOST,
) -> int:
    """Run a command while a lock is held.

    Such as: fencing run report --timeout 5 -- make report

    The command gets the fence in FENCING_TOKEN and its number in FENCING_NUMBER. Its exit status is ours. Others are
    64 (wrong usage), 69 (no answer), 75 (busy), 76 (lost), 78 (no URL, or refused), 126, 127, and 128 + n after signal
    n.
    """
    checked = _check(
        services,
        command=command,
        timeout=timeout,
        no_wait=no_wait,
        ttl=ttl,
        guard=guard,
        guard_file=guard_file,
        grace=grace,
        label=label,
        shell=shell,
        slots=slots,
        at_least=at_least,
        once=once,
        elect=elect,
        pass_env=pass_env,
    )
    try:
        return _work(services, name, checked)
    except Ended as ended:
        return status.OF_SIGNAL + ended.number
    except NotStarted as error:
        return _say_why(error, error.status)
    except OSError as error:
        return _say_why(f"the command cannot be started: {error}; try again", status.NOT_EXECUTABLE)
    except NotAcquired as error:
        return _say_why(error, busy_status)
    except LOSSES as error:
        return _say_why(error, lost_status)


@dataclass(frozen=True)
class Checked:
    """The options of a run, which fit together.

    Args:
        words: of the command.
        timeout: seconds to wait for the lock; 0: try once; None: for ever.
        of_lock: options of the library's lock: ttl, guards, owner.
        once: the key that is done once, and the guard that notes it.
        slots, at_least, elect, grace, pass_env: as they were given.
    """

    words: Sequence[str]
    timeout: float | None
    of_lock: dict[str, Any]
    once: tuple[str, Any] | None
    slots: int | None
    at_least: float | None
    elect: bool
    grace: float
    pass_env: bool


def _check(
    services: Services,
    *,
    command: list[str],
    timeout: float | None,
    no_wait: bool,
    ttl: float | None,
    guard: list[str] | None,
    guard_file: list[Path] | None,
    grace: float,
    label: str | None,
    shell: bool,
    slots: int | None,
    at_least: float | None,
    once: str | None,
    elect: bool,
    pass_env: bool,
) -> Checked:
    """Return what the options mean together. It asks no service.

    Raises:
        typer.BadParameter: they do not fit together.
    """
    if no_wait and timeout is not None:
        raise typer.BadParameter("pass --timeout or --no-wait, not both")
    if shell and len(command) != 1:
        raise typer.BadParameter("--shell takes one text: put it into quotes, as in --shell -- 'make report > log'")
    if slots is not None and once is not None:
        raise typer.BadParameter(
            "--once is for a lock: a key that is done belongs to its name, and each slot has its own"
        )
    if elect:
        others = {
            "--timeout": timeout is not None,
            "--no-wait": no_wait,
            "--slots": slots is not None,
            "--at-least": at_least is not None,
            "--once": once is not None,
        }
        for option, is_given in others.items():
            if is_given:
                raise typer.BadParameter(f"--elect waits and runs for ever, so it takes no {option}")
    guards = guards_of(guard, guard_file)
    noted = None
    if once is not None:
        url = services.named("database")
        if url is None:
            raise typer.BadParameter("--once needs a guard: pass --database URL, the database that notes what was done")
        guards[url] = guards.get(url) or guard_of(url)
        noted = once, guards[url]
    given = {"ttl": ttl, "guards": list(guards.values()) or None, "owner": label}
    return Checked(
        words=["/bin/sh", "-c", *command] if shell else command,
        timeout=0 if no_wait else timeout,
        of_lock={name: value for name, value in given.items() if value is not None},
        once=noted,
        slots=slots,
        at_least=at_least,
        elect=elect,
        grace=grace,
        pass_env=pass_env,
    )


def _work(services: Services, name: str, checked: Checked) -> int:
    """Run the command under the lock, and return the exit status."""
    logging.basicConfig(format="fencing: %(message)s", level=logging.WARNING)
    with Signals() as signals, closing(Runner(signals, checked.grace)) as runner, services.connect() as coordinator:
        job = Job(runner, checked.words, pass_env=checked.pass_env)
        if checked.elect:
            return _run_elected(coordinator, name, checked.of_lock, job, signals)
        hold: Any
        if checked.slots is None:
            hold = coordinator.hold(name, checked.timeout, at_least=checked.at_least, **checked.of_lock)
        else:
            slots = coordinator.slots(name, checked.slots, **checked.of_lock)
            hold = slots.hold(checked.timeout, at_least=checked.at_least)
        with hold as lease:
            return job.run(lease) if checked.once is None else _run_once(*checked.once, lease, job)


@dataclass
class Job:
    """What runs under the lease.

    Args:
        runner: runs it.
        command: its words.
        pass_env: whether it gets the URLs that the environment has.
    """

    runner: Runner
    command: Sequence[str]
    pass_env: bool

    def run(self, lease: Lease) -> int:
        """Run it, and return its status."""
        names = [name for name in os.environ if name != SLOT_VARIABLE and (self.pass_env or not _is_secret(name))]
        environment = {name: os.environ[name] for name in names}
        environment[FENCE_VARIABLE] = str(lease.fence)
        environment[NUMBER_VARIABLE] = str(lease.fence.number)
        with suppress(AttributeError):  # it is no slot
            environment[SLOT_VARIABLE] = str(lease.slot)
        return self.runner.run(self.command, environment, lease)


class _NotDone(Exception):
    """It rolls back the transaction that has only found out that the key is not done."""


def _run_once(key: str, guard: Any, lease: Lease, job: Job) -> int:
    """Run the job unless its key is done, and note the key when it has ended with 0, under the guard."""
    try:
        with guard.begin(lease, once=key):
            raise _NotDone
    except AlreadyDone as done:
        return _say_why(f"{done}; the command was not started", 0)
    except _NotDone:
        pass
    its_status = job.run(lease)
    if its_status:
        return its_status
    try:
        has_run_twice = _note(guard, key, lease)
    except (GuardUnavailable, OutcomeUnknown, GuardNotEnforceable) as error:
        text = f"the command has ended with 0, but it could not be noted that {key!r} is done, so it may run again"
        return _say_why(f"{text}: {error}", status.of(error))
    if has_run_twice:
        _say_why(f"{key!r} was done while the command ran: it ran twice; look at what both have done", 0)
    return 0


def _note(guard: Any, key: str, lease: Lease) -> bool:
    """Write the row of the key. Return whether another one was there.

    Each try knows what became of the one before: the row of this very lease is there, or it never will be.
    """
    for attempt in range(NOTE_ATTEMPTS):
        try:
            with guard.begin(lease, once=key):
                pass
        except AlreadyDone as done:
            return not done.is_own
        except (GuardUnavailable, OutcomeUnknown) as error:
            with suppress(GuardUnavailable):
                if isinstance(error, OutcomeUnknown) and guard.landed(error):
                    return False
            if attempt + 1 == NOTE_ATTEMPTS:
                raise
            time.sleep(NOTE_PAUSE_SECONDS)
        else:
            return False
    raise AssertionError("the last try returns or raises")


class _Last(BaseException):
    """The status of the command that ran last: a signal ends the election."""

    def __init__(self, its_status: int) -> None:
        self.status = its_status
        super().__init__(its_status)


def _run_elected(coordinator: Coordinator, name: str, of_lock: dict[str, Any], job: Job, signals: Signals) -> int:
    """Run the job in each term, until a signal ends it. Return the status of its last run."""

    def lead(lease: Lease) -> None:
        try:
            its_status = job.run(lease)
        except LeaseLost:
            signals.raise_again()
            raise
        if signals.ending is not None:  # Ctrl-C comes here, too
            raise _Last(its_status)
        _say_why(f"the command has ended with status {its_status}; this replica campaigns again", 0)
        signals.raise_again()

    options = dict(of_lock)
    try:
        coordinator.election(name, value=options.pop("owner", None), **options).run(lead)
    except _Last as last:
        return last.status
    raise AssertionError("nothing stops the election")


def _say_why(text: object, its_status: int) -> int:
    with suppress(OSError):  # nobody reads that any more; the status still says it
        warn(of_commands(str(text)))
    return its_status
