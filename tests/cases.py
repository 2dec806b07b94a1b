"""The cases that the CPU suite and the GPU suite run alike, in one list."""

from __future__ import annotations

from tests import (
    cases_deviations,
    cases_fusions,
    cases_inner_outer,
    cases_moves,
    cases_online,
    cases_ops,
    cases_reductions,
    cases_shapes,
)
from tests.support import Case

OP_CASES: list[Case] = cases_ops.CASES
FUSION_CASES: list[Case] = [
    *cases_reductions.CASES,
    *cases_fusions.CASES,
    *cases_shapes.CASES,
    *cases_moves.CASES,
    *cases_inner_outer.CASES,
    *cases_online.CASES,
    *cases_deviations.CASES,
]
