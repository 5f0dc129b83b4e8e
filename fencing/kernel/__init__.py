"""Values and rules of fencing: what a lock and a guard agree on. The standard library only; no I/O.

What a guard of your own needs is here; see docs/guards/your-own.md. The modules behind it are the library's own.
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
