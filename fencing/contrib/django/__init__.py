"""The library in Django: an app, and a guard on Django's own connections. See docs/recipes/django.md.

In settings: ``INSTALLED_APPS = [..., "fencing.contrib.django"]``. The guard is ``DjangoGuard``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fencing.contrib.django.guard import DjangoGuard as DjangoGuard


def __getattr__(name: str) -> Any:  # Django imports this module before its apps are ready
    if name != "DjangoGuard":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from fencing.contrib.django.guard import DjangoGuard
    except ModuleNotFoundError as error:
        from fencing.kernel.extras import raise_missing

        raise_missing(name, error)
    return DjangoGuard
