"""The coordinator of a project, which its settings name."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from fencing.coordinator import Coordinator

SETTING = "FENCING_COORDINATOR"


def coordinator() -> Coordinator:
    """Return the coordinator that the setting ``FENCING_COORDINATOR`` names.

    Raises:
        ImproperlyConfigured: the setting is missing, or names no sync coordinator. Correct it as the message says.
    """
    path = getattr(settings, SETTING, None)
    if path is None:
        raise ImproperlyConfigured(
            f'{SETTING} is not set: name the coordinator of your project, as in {SETTING} = "shop.locks.coordinator"'
        )
    try:
        found: Any = import_string(path)
    except (ImportError, TypeError, AttributeError) as error:
        raise ImproperlyConfigured(f"{SETTING} = {path!r} leads to nothing: {error}") from error
    if not isinstance(found, Coordinator):
        raise ImproperlyConfigured(
            f"{SETTING} = {path!r} is a {type(found).__name__}: name a sync coordinator, such as "
            f"fencing.connect(…) returns. Django's connections and commands are of threads"
        )
    return found
