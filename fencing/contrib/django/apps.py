"""The app, with its checks."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks

from fencing.contrib.django.checks import check_coordinator, check_tables


class FencingConfig(AppConfig):
    """The library as an app of Django's."""

    name = "fencing.contrib.django"
    label = "fencing"
    verbose_name = "Locks and marks"

    def ready(self) -> None:
        """Register the checks."""
        checks.register(check_coordinator)
        checks.register(check_tables, checks.Tags.database)
