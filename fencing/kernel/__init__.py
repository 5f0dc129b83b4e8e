"""Values and rules that locks and guards share. Standard library only; no I/O.

A guard of your own needs only the names here: see docs/guards/your-own.md. The modules behind them are private.
"""

from fencing.kernel.admission import admit_claim, admit_write, as_fence, sorted_fences
from fencing.kernel.errors import (
    CoordinatorUnavailable,
    FencingError,
    GuardNotEnforceable,
    GuardUnavailable,
    LeaseLost,
    MarkImplausible,
    NotAcquired,
    OutcomeUnknown,
    StaleFence,
    StaleRead,
    UnclaimedFence,
)
from fencing.kernel.fence import (
    MAX_NUMBER,
    MAX_RESOURCE_BYTES,
    Fence,
    HasFence,
    Mark,
    check_number,
    check_resource,
    check_token,
)

__all__ = [
    "MAX_NUMBER",
    "MAX_RESOURCE_BYTES",
    "CoordinatorUnavailable",
    "Fence",
    "FencingError",
    "GuardNotEnforceable",
    "GuardUnavailable",
    "HasFence",
    "LeaseLost",
    "Mark",
    "MarkImplausible",
    "NotAcquired",
    "OutcomeUnknown",
    "StaleFence",
    "StaleRead",
    "UnclaimedFence",
    "admit_claim",
    "admit_write",
    "as_fence",
    "check_number",
    "check_resource",
    "check_token",
    "sorted_fences",
]
