"""Stable bytes of kernels and definitions: what must differ differs, what is stored comes back."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from fuser_direct import FusionDefinition
from fuser_direct.enums import DataType
from fuser_direct.errors import InputError, UnsupportedError
from fuser_direct.ir import graph_data
from fuser_direct.ir.kernel import CONST, Buffer, Kernel, Node, Stage, Store
from fuser_direct.ir.serialize import digest
from fuser_direct.schedulers.schedule import CpuPointwise, CpuRow
from tests.cases import FUSION_CASES
from tests.support import Case, Maker, fusion_of
from tests.support import define as define_case


def kernel_with(value: object, dtype: DataType = DataType.Double) -> Kernel:
    buffers = (Buffer(dtype, (1,), True),)
    nodes = (Node(CONST, (), dtype, value),)  # type: ignore[arg-type]
    stage = Stage((), (), (Store(0, 0),), (), ())
    return Kernel("k", ("i",), buffers, (), nodes, (0,), (stage,))


def test_equal_kernels_have_equal_digests() -> None:
    assert digest(kernel_with(1.5), CpuPointwise(64, (True,))) == digest(
        kernel_with(1.5), CpuPointwise(64, (True,))
    )


def test_digest_is_the_same_in_every_process() -> None:
    # A fixed value: hash randomisation and the order of sets must have no say in it.
    assert digest((1, "a", None, True, 0.5)).hex()[:16] == "b3f740cb00bac900"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0),
        (1, True),
        (1, 1.0),
        (1.0, complex(1.0)),
        (0, False),
        (None, 0),
        (complex(0.0, 0.0), complex(0.0, -0.0)),
        (math.inf, -math.inf),
        (1.0, math.nextafter(1.0, 2.0)),
        ("1", 1),
    ],
)
def test_constants_that_compare_equal_but_are_other_code_differ(one: object, other: object) -> None:
    assert digest(kernel_with(one)) != digest(kernel_with(other))


def test_nan_equals_itself_and_no_other_nan() -> None:
    quiet = math.nan
    (other,) = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))
    assert digest(kernel_with(quiet)) == digest(kernel_with(float("nan")))
    assert digest(kernel_with(quiet)) != digest(kernel_with(other))


def test_every_field_of_a_kernel_counts() -> None:
    kernel = kernel_with(1.0)
    changed = [
        replace(kernel, name="other"),
        replace(kernel, axes=("r",)),
        replace(kernel, buffers=(Buffer(DataType.Double, (0,), True),)),
        replace(kernel, buffers=(Buffer(DataType.Float, (1,), True),)),
        replace(kernel, scalars=(DataType.Int,)),
        replace(kernel, prologue=()),
        replace(kernel, stages=()),
        kernel_with(1.0, DataType.Float),
    ]
    digests = {digest(k) for k in [kernel, *changed]}
    assert len(digests) == len(changed) + 1


def test_schedules_of_different_kinds_differ() -> None:
    assert digest(CpuRow((True,))) != digest(CpuPointwise(64, (True,)))
    assert digest(CpuPointwise(64, (True,))) != digest(CpuPointwise(128, (True,)))


def test_borders_between_strings_count() -> None:
    assert digest(("ab", "c")) != digest(("a", "bc"))
    assert digest(("a;", "b")) != digest(("a", ";b"))
    assert digest(("(",)) != digest((("",),))


def test_type_without_stable_form_is_refused() -> None:
    @dataclass(frozen=True)
    class Holder:
        held: Any

    with pytest.raises(TypeError, match="set has no stable form"):
        digest(Holder({1, 2}))


# --- definitions ---


def round_trip(fd: FusionDefinition) -> Any:
    assert fd.fusion is not None
    text = json.dumps(graph_data.to_data(fd.fusion))
    return graph_data.from_data(json.loads(text))


def define(builder: Callable[[FusionDefinition], None]) -> FusionDefinition:
    with FusionDefinition() as fd:
        builder(fd)
    return fd


def everything(fd: FusionDefinition) -> None:
    x = fd.define_tensor([-1, 8], [True, True], DataType.BFloat16)
    y = fd.define_tensor([-1, -1], [None, True], DataType.Float, stride_order=[1, 0])
    s = fd.define_scalar(None, DataType.Double)
    f = fd.ops.cast(x, DataType.Float)
    mean, _, _ = fd.ops.welford(f, [1])
    mean = fd.ops.broadcast(mean, [False, True])
    z = fd.ops.add(fd.ops.mul(fd.ops.sub(f, mean), s), math.nan)
    z = fd.ops.add(z, -0.0)
    fd.add_output(fd.ops.permute(z, [1, 0]))
    fd.add_output(fd.ops.where(fd.ops.gt(y, 1e-45), y, complex(0.0, -0.0)))
    fd.add_output(fd.ops.cast(z, DataType.BFloat16), x)


def test_definition_survives_json_bit_for_bit() -> None:
    fd = define(everything)
    fusion = round_trip(fd)
    assert fd.fusion is not None
    assert fusion.key() == fd.fusion.key()
    assert fusion.print_math(False) == fd.fusion.print_math(False)
    assert [v.number for v in fusion.vals()] == [v.number for v in fd.fusion.vals()]


@pytest.mark.parametrize("case", FUSION_CASES, ids=lambda case: case.name)
def test_every_case_survives_json(case: Case) -> None:
    fusion = fusion_of(define_case(case, case.inputs(Maker("cpu"))))
    stored = json.loads(json.dumps(graph_data.to_data(fusion)))
    restored = graph_data.from_data(stored)
    assert restored.key() == fusion.key()
    assert graph_data.to_data(restored) == graph_data.to_data(fusion)


def test_restored_definition_can_be_built_on() -> None:
    fusion = round_trip(define(everything))
    before = {v.number for v in fusion.vals() if v.is_tensor()}
    from fuser_direct import FusionGuard, ops

    with FusionGuard(fusion):
        made = ops.exp(fusion.inputs()[0])
    assert made.number not in before


@pytest.mark.parametrize(
    "harm",
    [
        lambda d: d.pop("vals"),
        lambda d: d["exprs"].append(["exp", [10**6], [0], {"dict": []}, None]),
        lambda d: d["inputs"].append(-1),
        lambda d: d["vals"].__setitem__(0, [0, "NoType", None]),
        lambda d: d["axes"].append([0, "i"]),
        lambda d: d["outputs"].append(0) or d["vals"].__setitem__(0, [0, "Int", None]),
        lambda d: d["exprs"].append(["exp", [0], [0], {"code": "x"}, None]),
    ],
)
def test_damaged_definition_is_an_error_of_ours(harm: Callable[[Any], Any]) -> None:
    fd = define(everything)
    assert fd.fusion is not None
    data = json.loads(json.dumps(graph_data.to_data(fd.fusion)))
    harm(data)
    with pytest.raises(InputError, match="the stored definition is damaged"):
        graph_data.from_data(data)


def test_attribute_that_json_can_t_hold_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="a set in a definition can't be stored"):
        graph_data.plain({1})
