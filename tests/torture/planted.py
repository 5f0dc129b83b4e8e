"""What the run is to find wanting: other locks, and other fences."""

from __future__ import annotations

from typing import Any

__all__ = ["CONTENDERS"]

CONTENDERS: dict[str, Any] = {}
