"""Printed definitions and reproduction scripts run as they are printed, for the suites' cases."""

from __future__ import annotations

from typing import Any

import pytest

from fuser_direct import DataType, FusionDefinition
from tests.cases import FUSION_CASES, OP_CASES
from tests.support import Case, Maker, arguments, define, fusion_of

# The peer prints `segment_set` as a cast, so it comes back as a copy.
_CASES = [case for case in (*OP_CASES, *FUSION_CASES) if case.name != "segment_set"]


@pytest.mark.filterwarnings("ignore:.*imaginary part")
@pytest.mark.parametrize("case", _CASES, ids=lambda case: case.name)
def test_printed_definition_rebuilds_the_fusion(case: Case) -> None:
    fd = define(case, case.inputs(Maker("cpu")))
    names: dict[str, Any] = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(repr(fd), names)
    with FusionDefinition() as rebuilt:
        names["nvfuser_fusion"](rebuilt)
    assert fusion_of(rebuilt) == fusion_of(fd)
    assert repr(rebuilt).count("\n") == repr(fd).count("\n")


@pytest.mark.parametrize("case", FUSION_CASES[::5], ids=lambda case: case.name)
def test_reproduction_script_holds_every_input(case: Case) -> None:
    # U3: strided, expanded, 0-d, empty and bool inputs, scalars with infinities.
    inputs = arguments(case.inputs(Maker("cpu")))
    fd = define(case, case.inputs(Maker("cpu")))
    script = fd.repro_script_for(inputs)
    names: dict[str, Any] = {}
    exec(script.replace("fd.execute(inputs)", ""), names)
    made = names["inputs"]
    assert len(made) == len(inputs)
    for got, want in zip(made, inputs, strict=True):
        if hasattr(want, "stride"):
            assert got.dtype == want.dtype
            assert (got.shape, got.stride()) == (want.shape, want.stride())
            assert got.device == want.device
        else:
            assert got == want
