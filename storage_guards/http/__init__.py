"""Fences over HTTP: the header ``Fencing-Token``, and the answers of a guarded service. For any framework."""

from storage_guards.http.header import (
    HEADER,
    MAX_HEADER,
    FenceRequired,
    SignatureRequired,
    fence_for,
    fences,
    header_of,
)
from storage_guards.http.problems import Problem, problem_of

__all__ = [
    "HEADER",
    "MAX_HEADER",
    "FenceRequired",
    "Problem",
    "SignatureRequired",
    "fence_for",
    "fences",
    "header_of",
    "problem_of",
]
