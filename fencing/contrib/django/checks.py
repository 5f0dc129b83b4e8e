"""The system checks of the app: ``manage.py check``, and ``manage.py check --database default`` for the tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import Error, connections

from fencing.contrib.django.coordinator import SETTING, coordinator
from fencing.contrib.django.marks import marks_of
from fencing.kernel.errors import GuardNotEnforceable


def check_coordinator(app_configs: object, **options: object) -> list[checks.CheckMessage]:
    """Return an error where the setting of the coordinator is wrong. It may be missing: then no command may need it."""
    if getattr(settings, SETTING, None) is None:
        return []
    try:
        coordinator()
    except ImproperlyConfigured as error:
        return [checks.Error(str(error), id="fencing.E001")]
    return []


def check_tables(
    app_configs: object, databases: Sequence[str] | None = None, **options: Any
) -> list[checks.CheckMessage]:
    """Return a warning for each database that was named where a guard would refuse to work.

    It is no error: ``migrate`` asks first, and may be what makes the tables.
    """
    found: list[checks.CheckMessage] = []
    for alias in databases or ():
        connection = connections[alias]
        try:
            marks = marks_of(connection, None)
            with connection.cursor() as cursor:
                marks.choice.of(marks.visible_tables(cursor))
        except (GuardNotEnforceable, Error) as error:
            found.append(checks.Warning(str(error), hint=f"This is the database {alias!r}.", id="fencing.W001"))
    return found
