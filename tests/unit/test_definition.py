"""FusionDefinition: inputs, outputs, the state machine, the graph and its key."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

import fuser_direct
from fuser_direct import (
    DataType,
    DefinitionError,
    DefinitionStateError,
    DefinitionTypeError,
    Fusion,
    FusionDefinition,
    FusionGuard,
    UnsupportedDeviceError,
    UnsupportedDTypeError,
    UsageError,
    compute_tensor_descriptor,
    ops,
)


def kinds(tv: Any) -> str:
    return "".join(axis.kind for axis in tv.logical)


def extents(tv: Any) -> list[int | None]:
    return [axis.size().value for axis in tv.logical]


# --- define_tensor ---


def test_shape_alone_means_no_contiguity_and_float() -> None:
    with FusionDefinition() as fd:
        tv = fd.define_tensor([2, 3])
    assert tv.contiguity == (False, False)
    assert tv.dtype() is DataType.Float
    assert extents(tv) == [2, 3]
    assert tv.stride_order is None
    assert not tv.is_cpu


def test_two_int_lists_are_sizes_and_strides() -> None:
    with FusionDefinition() as fd:
        tv = fd.define_tensor([2, 3], [3, 1])
        static = fd.define_tensor([2, 3], [3, 1], static_sizes=True)
    assert tv.contiguity == (True, True)
    assert extents(tv) == [None, None]
    assert extents(static) == [2, 3]


def test_list_of_flags_is_contiguity() -> None:
    with FusionDefinition() as fd:
        tv = fd.define_tensor([2, 3], [True, None])
    assert tv.contiguity == (True, None)
    assert kinds(tv) == "ib"
    assert tv.logical[1].extent().value == 1
    assert tv.logical[1].expanded is not None
    assert tv.logical[1].expanded.value == 3


def test_one_flag_is_for_all_dims_but_broadcasts() -> None:
    with FusionDefinition() as fd:
        tv = fd.define_tensor([2, 1, 3], True)
    assert tv.contiguity == (True, None, True)
    assert kinds(tv) == "ibi"


@pytest.mark.parametrize("shape", [(2, 3), torch.Size([2, 3]), range(2, 4), np.array([2, 3])])
def test_any_sequence_is_a_shape(shape: Any) -> None:
    with FusionDefinition() as fd:
        assert extents(fd.define_tensor(shape)) == [2, 3]


@pytest.mark.parametrize(
    "arguments",
    [
        ([10.0],),
        ([2**63],),
        ("12",),
        (3,),
        ([2], "x"),
        ([2], [1.5]),
        ([2], None),
        ([2], True, "Float"),
    ],
)
def test_wrong_types_of_define_tensor_list_the_forms(arguments: tuple[Any, ...]) -> None:
    with FusionDefinition() as fd, pytest.raises(DefinitionTypeError) as caught:
        fd.define_tensor(*arguments)
    assert str(caught.value).startswith("define_tensor(): incompatible function arguments")
    assert "sizes: list[int], strides: list[int]" in str(caught.value)


def test_unknown_keyword_of_define_tensor_is_refused() -> None:
    with FusionDefinition() as fd, pytest.raises(TypeError, match="symbolic_sizes"):
        fd.define_tensor([2], symbolic_sizes=True)


@pytest.mark.parametrize(
    ("shape", "rest", "fragment"),
    [
        ([2, -2], {}, r"The value -2 at index 1 was neither symbolic\(-1\), zero_element\(0\)"),
        ([2, 2], {"contiguity": [True] * 3}, r"\(3\) must match that of shape argument \(2\)"),
        ([2, 2], {"stride_order": [0]}, r"stride_order argument \(1\) must be zero or match"),
        ([2, 2], {"stride_order": [0, 2]}, "stride_order argument is out of range"),
        ([2, 2], {"stride_order": [0, -3]}, "stride_order argument is out of range"),
        ([2, 2], {"stride_order": [1, 1]}, "duplicated stride_order entries"),
        ([2], {"is_cpu": True}, "CPU non-scalar tensor is not supported!"),
        ([1], {"contiguity": [True]}, "contiguity of a broadcast axis must be None"),
        ([2], {"dtype": DataType.Null}, "dtype DataType.Null is not supported"),
    ],
)  # fmt: skip
def test_bad_tensors_are_refused(shape: list[int], rest: dict[str, Any], fragment: str) -> None:
    with FusionDefinition() as fd, pytest.raises(DefinitionError, match=fragment):
        fd.define_tensor(shape, **rest)


def test_contiguity_is_in_allocation_order() -> None:
    # Dim 0 is the fastest, dim 1 the slowest and a broadcast: outermost first it comes first.
    with FusionDefinition() as fd:
        tv = fd.define_tensor([-1, 1, -1], [None, False, True], stride_order=[0, 2, 1])
        one_flag = fd.define_tensor([-1, 1, -1], True, stride_order=[0, 2, 1])
    assert kinds(tv) == "ibi"
    assert tv.stride_order == (0, 2, 1)
    assert one_flag.contiguity == (None, True, True)


def test_row_major_stride_order_is_dropped() -> None:
    with FusionDefinition() as fd:
        assert fd.define_tensor([2, 3], stride_order=[1, 0]).stride_order is None
        assert fd.define_tensor([2, 3], stride_order=[0, 1]).stride_order == (0, 1)
        assert fd.define_tensor([2, 3], stride_order=[-2, -1]).stride_order == (0, 1)


def test_unknown_size_without_contiguity_is_an_expanded_broadcast() -> None:
    with FusionDefinition() as fd:
        tv = fd.define_tensor([-1, 0], [None, None])
    assert kinds(tv) == "bb"
    assert extents(tv) == [None, 0]


@pytest.mark.parametrize(
    ("sizes", "strides", "contiguity", "order"),
    [
        ([3, 5, 7], [1, 21, 3], [True, True, True], [0, 2, 1]),
        ([6, 1, 5], [5, 9, 1], [None, True, True], [1, 2, 0]),
        ([4, 3, 2], [10, 0, 1], [False, None, True], [2, 1, 0]),
        ([8, 1, 6, 2], [2, 40, 16, 1], [None, True, True, True], [1, 3, 2, 0]),
        ([], [], [], []),
        ([1, 1], [2, 1], [None, None], [1, 0]),
        ([4, 4], [5, 1], [False, True], [1, 0]),
        ([4, 4], [4, 2], [False, False], [1, 0]),
        ([3, 3], [0, 0], [None, None], [1, 0]),
    ],
)
def test_descriptor(
    sizes: list[int], strides: list[int], contiguity: list[bool | None], order: list[int]
) -> None:
    assert compute_tensor_descriptor(sizes, strides) == (contiguity, order)


def test_descriptor_refuses_what_it_cannot_describe() -> None:
    with pytest.raises(RuntimeError, match="same length"):
        compute_tensor_descriptor([2, 3], [1])
    with pytest.raises(RuntimeError, match="must not be negative"):
        compute_tensor_descriptor([2], [-1])
    with pytest.raises(TypeError, match="compute_tensor_descriptor"):
        compute_tensor_descriptor([2.0], [1])  # type: ignore[list-item]


# --- scalars ---


def test_scalar_forms() -> None:
    with FusionDefinition() as fd:
        symbolic = [
            fd.define_scalar(),
            fd.define_scalar(DataType.Int),
            fd.define_scalar(dtype=DataType.Int),
            fd.define_scalar(None, DataType.Bool),
            fd.define_scalar(value=None, dtype=DataType.Half),
        ]
        constants = [
            fd.define_scalar(3),
            fd.define_scalar(3.0),
            fd.define_scalar(1 + 2j),
            fd.define_scalar(3, DataType.Float),
            fd.define_scalar(2.7, DataType.Int),
            fd.define_scalar(True),
            fd.define_scalar(1, DataType.Bool),
        ]
    expected = [DataType.Double, DataType.Int, DataType.Int, DataType.Bool, DataType.Half]
    assert [val.dtype_ for val in symbolic] == expected
    assert fd.fusion is not None
    assert fd.fusion.inputs() == symbolic
    assert [(val.value, val.dtype_) for val in constants] == [
        (3, DataType.Int),
        (3.0, DataType.Double),
        (1 + 2j, DataType.ComplexDouble),
        (3.0, DataType.Float),
        (2, DataType.Int),
        (1, DataType.Int),
        (True, DataType.Bool),
    ]
    assert [type(val.value) for val in constants] == [int, float, complex, float, int, int, bool]


def test_scalar_of_a_wrong_type_is_refused() -> None:
    with FusionDefinition() as fd:
        for value in ("x", 2**63, [1]):
            with pytest.raises(DefinitionTypeError, match="define_scalar"):
                fd.define_scalar(value)
        with pytest.raises(DefinitionError, match=r"no value of DataType\.Int"):
            fd.define_scalar(float("nan"), DataType.Int)


def test_vector_is_a_list_of_int_inputs() -> None:
    with FusionDefinition() as fd:
        tv = fd.define_tensor([-1])
        vector = fd.define_vector(2)
    assert isinstance(vector, list)
    assert [val.dtype_ for val in vector] == [DataType.Int] * 2
    assert fd.fusion is not None
    assert fd.fusion.inputs() == [tv, *vector]


def test_module_level_inputs_are_not_registered() -> None:
    with FusionDefinition() as fd:
        tv, val = fuser_direct.define_tensor([2]), fuser_direct.define_scalar()
        assert fd.fusion is not None
        assert fd.fusion.inputs() == []
        fd.fusion.add_input(val)
        fd.fusion.add_input(tv)
        assert fd.fusion.inputs() == [val, tv]
        with pytest.raises(DefinitionError, match="is an input of this fusion already"):
            fd.fusion.add_input(tv)
        with pytest.raises(
            DefinitionError, match="Immediate scalar value cannot be added as an input"
        ):
            fd.fusion.add_input(fuser_direct.define_scalar(2))
        with pytest.raises(DefinitionError, match="is computed by this fusion"):
            fd.fusion.add_input(ops.neg(tv))


# --- from_pytorch ---


def test_from_pytorch_freezes_ones_and_expansions_only() -> None:
    with FusionDefinition() as fd:
        tv = fd.from_pytorch(torch.zeros(3, 1, 5, dtype=torch.float16).expand(3, 4, 5))
        ones = fd.from_pytorch(torch.zeros(3, 1, 5).transpose(0, 2))
        static = fd.from_pytorch(torch.zeros(3, 5), static_sizes=True)
        rank0 = fd.from_pytorch(torch.zeros(()))
    assert kinds(tv) == "ibi"
    assert extents(tv) == [None, None, None]
    assert tv.dtype() is DataType.Half
    assert extents(ones) == [None, 1, None]
    # Strides 1, 5, 5: of the equal ones the first stands outside.
    assert ones.stride_order == (0, 2, 1)
    assert extents(static) == [3, 5]
    assert rank0.is_cpu
    assert not static.is_cpu


def test_from_numpy_takes_strides_in_elements() -> None:
    with FusionDefinition() as fd:
        tv = fd.from_pytorch(np.zeros((4, 6), np.complex64)[:, ::2].T)
    assert tv.dtype() is DataType.ComplexFloat
    assert tv.contiguity == (True, False)
    assert tv.stride_order == (0, 1)


@pytest.mark.parametrize(
    ("torch_dtype", "dtype"),
    [
        (torch.float64, DataType.Double),
        (torch.float32, DataType.Float),
        (torch.float16, DataType.Half),
        (torch.bfloat16, DataType.BFloat16),
        (torch.int64, DataType.Int),
        (torch.int32, DataType.Int32),
        (torch.bool, DataType.Bool),
        (torch.complex64, DataType.ComplexFloat),
        (torch.complex128, DataType.ComplexDouble),
    ],
)
def test_from_pytorch_dtypes(torch_dtype: torch.dtype, dtype: DataType) -> None:
    with FusionDefinition() as fd:
        assert fd.from_pytorch(torch.zeros(2, dtype=torch_dtype)).dtype() is dtype


def test_from_pytorch_refusals() -> None:
    with FusionDefinition() as fd:
        with pytest.raises(KeyError, match="uint8") as caught:
            fd.from_pytorch(torch.zeros(2, dtype=torch.uint8))
        assert isinstance(caught.value, UnsupportedDTypeError)
        with pytest.raises(UnsupportedDeviceError) as wrong_device:
            fd.from_pytorch(torch.zeros(2, device="meta"))
        fragment = "Found unsupported device meta, only scalar CPU or CUDA tensors are supported"
        assert fragment in str(wrong_device.value)
        with pytest.raises(DefinitionTypeError, match="from_pytorch"):
            fd.from_pytorch([1.0])
        with pytest.raises(DefinitionError, match="negative strides"):
            fd.from_pytorch(np.zeros(4)[::-1])


# --- outputs ---


def make_unary() -> tuple[FusionDefinition, Any, Any]:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        y = fd.ops.neg(x)
    return fd, x, y


def test_peer_example_of_aliases() -> None:
    fd, x, y = make_unary()
    for arguments in ((y,), (y, x), (y,), (x,)):
        fd.add_output(*arguments)
    assert fd.fusion is not None
    assert fd.fusion.outputs() == [y, y, x]
    assert fd.fusion.returned() == [y, y, x]
    assert fd.fusion.aliases == {y: x}


def test_alias_alone_is_hidden_and_plain_later_moves_it_to_the_end() -> None:
    fd, x, y = make_unary()
    fd.add_output(y, x)
    fd.add_output(x)
    assert fd.fusion is not None
    assert fd.fusion.outputs() == [y, x]
    assert fd.fusion.returned() == [x]
    fd.add_output(y)
    assert fd.fusion.outputs() == [x, y]
    assert fd.fusion.returned() == [x, y]
    assert fd.fusion.aliases == {y: x}


def test_aliased_input_is_copied_first() -> None:
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1]), fd.define_tensor([-1])
        fd.add_output(x, alias_input=y)
    assert fd.fusion is not None
    (output,) = fd.fusion.outputs()
    assert output is not x
    assert output.definition().op == "set"


def test_outputs_that_cannot_be() -> None:
    fd, x, y = make_unary()
    other, stranger, _ = make_unary()
    with FusionDefinition() as third:
        half = third.define_tensor([-1, -1], dtype=DataType.Half)
        single = third.define_tensor([-1, -1])
        vector = third.define_tensor([-1])
        fixed, other_fixed = third.define_tensor([2, 3]), third.define_tensor([2, 4])
        computed = third.ops.neg(single)
        scalar = third.define_scalar()
    for call, fragment in [
        (lambda: third.add_output(scalar), "Non-TensorView outputs are not supported"),
        (
            lambda: third.add_output(computed, half),
            "tv5 .* can't be written into input tv0 \\(Half .*cast it first",
        ),
        (lambda: third.add_output(computed, vector), "their ranks differ"),
        (lambda: third.add_output(fixed, other_fixed), "dim 1 is 3 here and 4 there"),
        (lambda: third.add_output(single, computed), "alias_input must be an input"),
        (lambda: third.add_output(single, scalar), "alias_input must be a tensor input"),
        (lambda: fd.add_output(stranger), "belongs to another fusion"),
        (lambda: fd.add_output(y, stranger), "alias_input .* belongs to another fusion"),
    ]:
        with pytest.raises(DefinitionError, match=fragment):
            call()
    with pytest.raises(DefinitionTypeError, match=r"add_output\(\): incompatible"):
        fd.add_output(3)  # type: ignore[arg-type]
    assert other.fusion is not None
    assert other.fusion.outputs() == []
    assert x.fusion is fd.fusion


def test_value_of_another_fusion_is_refused_by_ops() -> None:
    _, stranger, _ = make_unary()
    with FusionDefinition() as fd:
        mine = fd.define_tensor([-1, -1])
        with pytest.raises(
            DefinitionError, match=r"add: rhs tv0 \(Float \[-1, -1\]\) belongs to another fusion"
        ):
            fd.ops.add(mine, stranger)
        with pytest.raises(DefinitionError, match=r"sum: arg tv0 .* belongs to another fusion"):
            fd.ops.sum(stranger, [0])


# --- guards and state ---


def test_ops_need_an_active_fusion() -> None:
    _, x, _ = make_unary()
    with pytest.raises(DefinitionError, match="neg: no fusion is being defined"):
        ops.neg(x)
    assert ops.size(x, 0) is x.logical[0].extent()


def test_inner_definition_gets_the_nodes() -> None:
    with FusionDefinition() as outer:
        outer.define_tensor([2])
        with FusionDefinition() as inner:
            tv = outer.define_tensor([3])
            assert tv.fusion is inner.fusion
        assert outer.define_tensor([4]).fusion is outer.fusion


def test_guard_ends_when_deleted_and_restores_the_one_before() -> None:
    first, second = Fusion(), Fusion()
    guard = FusionGuard(first)
    inner = FusionGuard(second)
    assert fuser_direct.define_scalar().fusion is second
    del inner
    assert fuser_direct.define_scalar().fusion is first
    del guard
    with pytest.raises(DefinitionError, match="no fusion is being defined"):
        fuser_direct.define_scalar()
    with pytest.raises(DefinitionTypeError, match="fusion must be a Fusion"):
        FusionGuard(3)


def test_guards_of_threads_are_apart() -> None:
    seen: list[Any] = []

    def define() -> None:
        with pytest.raises(DefinitionError):
            fuser_direct.define_scalar()
        with FusionDefinition() as fd:
            seen.append(fd.define_scalar().fusion is fd.fusion)

    with FusionDefinition() as fd:
        thread = threading.Thread(target=define)
        thread.start()
        thread.join()
        assert fd.define_scalar().fusion is fd.fusion
    assert seen == [True]


def test_definition_starts_over_when_entered_again() -> None:
    fd, x, _ = make_unary()
    with fd:
        fd.add_output(fd.define_tensor([3]))
    assert fd.fusion is not x.fusion
    assert fd.fusion is not None
    assert len(fd.fusion.inputs()) == 1


def test_exception_inside_the_block_is_printed_and_passed_on(capsys: Any) -> None:
    with pytest.raises(ZeroDivisionError), FusionDefinition():
        _ = 1 // 0
    printed = capsys.readouterr().out
    assert printed.startswith(
        "Exception occurred: ZeroDivisionError: integer division or modulo by zero"
    )
    assert "test_definition.py" in printed
    with pytest.raises(DefinitionError):
        fuser_direct.define_scalar()


def test_undefined_and_empty_definitions_are_refused() -> None:
    fd = FusionDefinition()
    message = "Fusion does not exist! Use `with FusionDefinition() as fd: ...` to define a fusion."
    assert fd.validate_definition() == (False, message)
    with pytest.raises(NotImplementedError) as caught:
        fd.execute([])
    assert str(caught.value) == message
    with pytest.raises(DefinitionStateError):
        fd.add_output(make_unary()[1])
    with fd:
        fd.define_tensor([2])
    assert fd.validate_definition() == (False, "Fusion is empty!")
    for call in (fd.execute, fd.manual_execute):
        with pytest.raises(NotImplementedError, match="Fusion is empty!"):
            call([])


class FakeCache:
    """Stands in for the executor cache: records calls, owns the fusion."""

    def __init__(self, fusion: Fusion) -> None:
        self.owned = fusion
        self.calls: list[tuple[Any, ...]] = []

    def fusion(self) -> Fusion:
        return self.owned

    def execute(self, inputs: Any, **kwargs: Any) -> list[Any]:
        self.calls.append((inputs, kwargs))
        return ["result"]


def test_cache_set_by_hand_owns_the_fusion() -> None:
    fd, x, y = make_unary()
    fd.add_output(y)
    cache = FakeCache(x.fusion)
    fd.fec = cache  # type: ignore[assignment]
    del fd._fusion
    assert fd.fusion is x.fusion
    assert "fd.ops.neg(tv0)" in repr(fd)
    assert fd.execute(iter([1, [2, 3], (4,)]), device="cuda:1") == ["result"]
    assert cache.calls[0][0] == [1, 2, 3, 4]
    assert cache.calls[0][1]["device"] == 1
    with pytest.raises(UsageError, match="FusionExecutorCache already exists! Use execute"):
        fd.manual_execute([1])
    with pytest.raises(UsageError, match="was executed already"):
        fd.add_output(y)


def test_manual_executor_excludes_execute() -> None:
    fd, _, y = make_unary()
    fd.add_output(y)
    fd.ke = object()  # type: ignore[assignment]
    with pytest.raises(AssertionError, match="KernelExecutor already exists! Use manual_execute"):
        fd.execute([])


def test_device_argument() -> None:
    fd, x, y = make_unary()
    fd.add_output(y)
    cache = FakeCache(x.fusion)
    fd.fec = cache  # type: ignore[assignment]
    for device in (
        None,
        0,
        3,
        "cuda",
        "cuda:2",
        torch.device("cuda", 4),
        "cpu",
        torch.device("cpu"),
    ):
        fd.execute([], device=device)
    assert [kwargs.get("device") for _, kwargs in cache.calls] == [None, 0, 3, 0, 2, 4, -1, -1]
    with pytest.raises(AssertionError, match="device must be"):
        fd.execute([], device="mps")
    with pytest.raises(RuntimeError, match="device index must be"):
        fd.execute([], device=256)


def test_arbitrary_attributes_can_be_set() -> None:
    fd = FusionDefinition()
    fd._selected_device = 3  # type: ignore[attr-defined]
    assert fd._selected_device == 3  # type: ignore[attr-defined]
