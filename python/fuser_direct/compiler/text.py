"""Compiled programs in words: what `FusionExecutorCache.get_scheduled_ir` gives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fuser_direct.compiler.preview import AssumedArg, assumed_cuda_text
from fuser_direct.compiler.program import KernelInfo
from fuser_direct.compiler.segment import is_library, live_exprs
from fuser_direct.dtypes import INFO
from fuser_direct.ir.fusion import Expr, Fusion, TensorView, Val, allocation_order
from fuser_direct.ir.walk import needed_exprs
from fuser_direct.schedulers.contract import CudaLaunch

# What `print_kernel` takes a symbolic extent for; large enough for the kernels of usual calls.
_ASSUMED_EXTENT = 1024


def scheduled_text(fusion: Fusion, kernels: Sequence[KernelInfo], tensor_transforms: bool) -> str:
    """The fusion's math kernel by kernel, each with its schedule. A fusion of one kernel has one
    frame; one of several has the prefix `Segmented_Fusion Dump:` and a frame each.
    """
    if len(kernels) <= 1:
        body = [expr for expr in needed_exprs(fusion) if expr.outs[0].is_tensor()]
        text = _frame(fusion.inputs(), fusion.outputs(), body, kernels)
    else:
        library = iter([expr for expr in live_exprs(fusion) if _calls_library(expr)])
        frames = [_kernel_frame(kernel, library) for kernel in kernels]
        text = "Segmented_Fusion Dump:\n" + "\n".join(frames)
    return text + _transforms_text(fusion) if tensor_transforms else text


def _calls_library(expr: Expr) -> bool:
    return expr.outs[0].is_tensor() and is_library(expr)


def _kernel_frame(kernel: KernelInfo, library: Iterable[Expr]) -> str:
    if kernel.scheduled is None:
        call = next((expr for expr in library if expr.op == kernel.name), None)
        if call is None:
            return _frame((), (), (), [kernel])
        tensors = _distinct(val for val in call.ins if isinstance(val, TensorView))
        return _frame(tensors, call.outs, [call], [kernel])
    operands = [argument.operand for argument in kernel.scheduled.lowered.arguments]
    read = _distinct(o.tensor for o in operands if not o.is_output)
    written = _distinct(o.tensor for o in operands if o.is_output)
    return _frame(read, written, _math_between(read, written), [kernel])


def _distinct(tensors: Iterable[TensorView | None]) -> list[TensorView]:
    return list(dict.fromkeys(tv for tv in tensors if tv is not None))


def _math_between(read: Sequence[TensorView], written: Sequence[TensorView]) -> list[Expr]:
    """The expressions that lead from `read` to `written`, in definition order."""
    found: set[Expr] = set()
    stack: list[Val] = list(written)
    known = set(read)
    while stack:
        expr = stack.pop().definition()
        if expr is not None and expr not in found:
            found.add(expr)
            stack.extend(val for val in expr.ins if val.is_tensor() and val not in known)
    return sorted(found, key=lambda expr: expr.number)


def _frame(
    inputs: Iterable[Val],
    outputs: Iterable[Val],
    body: Iterable[Expr],
    kernels: Iterable[KernelInfo],
) -> str:
    lines = ["Inputs:", *(f"  {val}" for val in inputs)]
    lines += ["Outputs:", *(f"  {val}" for val in outputs), "", "%kernel {"]
    lines += [f"// {line}" for kernel in kernels for line in _schedule_lines(kernel)]
    text = "\n".join(lines) + "\n"
    return text + "".join(str(expr) for expr in body) + "} // %kernel\n"


def _schedule_lines(kernel: KernelInfo) -> Iterable[str]:
    """The kernel's name and scheduler, the choice in words, the loop nest and the launch."""
    item = kernel.scheduled
    if item is None:
        yield f"{kernel.name}: a call of the framework's library (expr_eval)"
        return
    yield f"{kernel.name} ({kernel.backend}): {item.scheduler.name}: {item.reason}"
    yield f"loop nest: {item.schedule}"
    launch = item.launch
    if isinstance(launch, CudaLaunch):
        grid, block = ("x".join(map(str, dims)) for dims in (launch.grid, launch.block))
        yield f"launch: grid {grid}, block {block}"
    else:
        yield f"launch: {launch.items} work items, at least {launch.grain} a thread"


def _transforms_text(fusion: Fusion) -> str:
    """What the user's manual schedule says of each tensor's loop axes."""
    lines = []
    for val in fusion.vals():
        if not isinstance(val, TensorView):
            continue
        lines.append(str(val))
        lines.append(f" logical domain : ({', '.join(map(str, val.get_logical_domain()))})")
        for entry in val.loops.history:
            step = str(entry).rstrip() if isinstance(entry, Expr) else f"Reorder: {entry[1]}"
            lines.append(f"  {step}")
        lines += [f"  {note}" for note in val.loops.notes]
        lines.append(f" loop domain : ({', '.join(map(str, val.get_loop_domain()))})")
    return "\n".join(lines) + "\n"


def kernel_text(fusion: Fusion) -> str:
    """CUDA text of the fusion's kernels for dense inputs whose symbolic extents are 1024, for an
    H100.
    """
    inputs = fusion.inputs()
    args = [
        _assumed_tensor(val) if isinstance(val, TensorView) else _assumed_scalar(val)
        for val in inputs
    ]
    return "\n\n".join(assumed_cuda_text(fusion, args))


def _assumed_tensor(tv: TensorView) -> AssumedArg:
    sizes = []
    for axis in tv.logical:
        value = axis.size().value
        sizes.append(_ASSUMED_EXTENT if value is None else int(value.real))
    order = range(tv.ndim) if tv.stride_order is None else allocation_order(tv.stride_order)
    strides = [0] * tv.ndim
    step = 1
    for dim in reversed(list(order)):
        is_expanded = tv.logical[dim].expanded is not None
        strides[dim] = 0 if is_expanded else step
        step *= 1 if is_expanded else max(sizes[dim], 1)
    return AssumedArg(
        True,
        INFO[tv.dtype_].dlpack,
        device_type=1 if tv.is_cpu else 2,
        shape=tuple(sizes),
        strides=tuple(strides),
    )


def _assumed_scalar(val: Val) -> AssumedArg:
    kind = INFO[val.dtype_].kind
    value = {"bool": True, "int": _ASSUMED_EXTENT, "float": 1.0, "complex": 1j}[kind]
    return AssumedArg(False, kind=kind, value=value, type_name=kind)
