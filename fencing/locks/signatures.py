"""The signatures that ``help()`` and ``inspect.signature`` show: each option by its name, not only ``**options``.

Type checkers read the options from the annotation, ``Unpack[…]``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar, get_type_hints

from fencing.locks.settings import STALLED_TTLS, AsyncCoordinatorOptions, CoordinatorOptions, Settings

F = TypeVar("F", bound=Callable[..., Any])


class _Words:
    """A default that is no value, in words."""

    def __init__(self, words: str) -> None:
        self._words = words

    def __repr__(self) -> str:
        return f"<{self._words}>"


_DEFAULTS: dict[str, Any] = {each.name: each.default for each in fields(Settings) if each.init} | {
    "stall_limit": _Words(f"{STALLED_TTLS} ttls"),
    "prefix": None,
}
_OF_COORDINATORS = (CoordinatorOptions, AsyncCoordinatorOptions)


def show_options(options: type) -> Callable[[F], F]:
    """Return a decorator that shows these options in the signature of a function, which it returns unchanged.

    Args:
        options: the ``TypedDict`` of the function's ``**options``. Those of a lock have the coordinator's as defaults.
    """
    of_lock = _Words("the coordinator's")
    shown = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_DEFAULTS[name] if options in _OF_COORDINATORS else of_lock,
            annotation=annotation,
        )
        for name, annotation in get_type_hints(options).items()
    ]

    def show(function: F) -> F:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        function.__signature__ = signature.replace(parameters=[*own, *shown])  # type: ignore[attr-defined]
        return function

    return show
