"""Faults of databases, and what their operators do meanwhile."""

from __future__ import annotations

import time

from sqlalchemy.exc import SQLAlchemyError

from fencing import FencingError, SQLCoordinator
from tests.torture.faults.base import InVain, Strike, fault
from tests.torture.history import Event
from tests.torture.services.backup import Backup
from tests.torture.turn import key_of, today

SQL = ("postgresql", "mariadb", "sqlite")
IDLE_SECONDS = 0.5
"""Marks that were not claimed for so long are pruned, living holders or not: they must be refused then."""
LOCKS_IDLE_SECONDS = 60
"""The least that a coordinator takes."""
LONGEST_REST = 0.5
OLDEST_DAYS = 4


@fault("kill", "postgresql", "mariadb", "http", is_slow=True)
def kill(strike: Strike) -> None:
    """Kill the server, and restart it with its data."""
    server = strike.service.server
    server.kill()
    time.sleep(min(strike.seconds, LONGEST_REST))
    server.restart()


@fault("prune", *SQL, "http", is_slow=True, is_alone=False)
def prune(strike: Strike) -> None:
    """Delete marks that were idle for a moment only, and locks that were for a minute."""
    service = strike.service
    try:
        service.guard.prune(older_than=IDLE_SECONDS)
        with SQLCoordinator(service.engine) as coordinator:
            coordinator.prune(older_than=LOCKS_IDLE_SECONDS)
    except (FencingError, SQLAlchemyError) as error:
        raise InVain(str(error)) from error  # it is busy, or was killed


@fault("prune keys", *SQL, weight=2, is_slow=True, is_alone=False)
def prune_keys(strike: Strike) -> None:
    """Delete what is noted as done once on earlier days: nobody may do it again."""
    service, start = strike.service, time.monotonic()
    below = key_of(today() - strike.target % OLDEST_DAYS)
    places = [place for place in service.places if place.use == "once"]
    try:
        for place in places:
            service.guard.prune_done(place.name, below=below)
    except (FencingError, SQLAlchemyError) as error:
        raise InVain(str(error)) from error
    finally:
        now = time.monotonic()
        service.events += [Event("pruned", start, now, counter=place.name, key=below) for place in places]


@fault("verify", *SQL, "http", is_slow=True, is_alone=False)
def verify(strike: Strike) -> None:
    """Ask whether everything is in order."""
    try:
        strike.service.guard.verify()
    except (FencingError, SQLAlchemyError) as error:
        raise InVain(str(error)) from error


@fault("back up", *SQL, "http", weight=2, is_slow=True)
def back_up(strike: Strike) -> None:
    """Copy all tables."""
    try:
        strike.service.backup = Backup(strike.service.engine)
    except SQLAlchemyError as error:
        raise InVain(str(error)) from error


@fault("restore", *SQL, "http", is_slow=True)
def restore(strike: Strike) -> None:
    """Put the last copy of all tables back, while others use them."""
    service, start = strike.service, time.monotonic()
    if service.backup is None:
        raise InVain("there is no copy")
    try:
        service.backup.restore()
    except SQLAlchemyError as error:
        raise InVain(str(error)) from error
    service.was_rewound(service.backup.since, start)
