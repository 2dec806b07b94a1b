"""Writes docs/ops.md: every op, what it computes, and what runs it on each backend.

What runs an op is the segmenter's own answer (`compiler.segment.is_library`) for a small
definition of it, so the page says what the compiler does. `--table` prints the counts instead.
"""

from __future__ import annotations

import argparse
import inspect
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuser_direct import DataType, FusionDefinition, ops
from fuser_direct.compiler.segment import is_library, live_exprs
from fuser_direct.dtypes import INFO, KERNEL_DTYPES
from fuser_direct.ir.fusion import TensorView
from fuser_direct.ops.reference_index import INDEX_OPS
from fuser_direct.ops.reference_library import REFERENCES
from fuser_direct.ops.table import ROWS, supports

PAGE = Path(__file__).parents[1] / "docs" / "ops.md"

_D = DataType
_HEAD = """\
# Ops

Made by `python tools/ops_page.py` from the op table and the segmenter's own answers; change those.

*kernel*: the op is part of a generated kernel, LLVM IR on the CPU and CUDA C++ on a GPU, and is
fused with what surrounds it. *library*: a call of the framework between kernels. Where the CPU
column says PyTorch alone, NumPy arrays are refused with a message that says so. Shape ops that a
kernel reads through (permute, reshape, slice, ...) move nothing by themselves; as a fusion's output
they are views where strides allow.

Operand types of kernels: {kernel_types}. Besides, kernels load, convert, move and store
{moved_types}, by PyTorch's bits where a value is in range; beyond it casts saturate.
Tensors of {library_types} can be inputs and outputs, and only a library call converts
them. fp4 counts elements in a fusion, and pairs along the fastest dim in PyTorch's tensor.
"""


def _f(fd: Any, *shape: int, dtype: DataType = _D.Float) -> Any:
    return fd.define_tensor(list(shape) or [-1, 8], dtype=dtype)


def _q(fd: Any) -> Any:
    return _f(fd, -1, 2, -1, 8, dtype=_D.BFloat16)


def _attention_backward(fd: Any) -> Any:
    seed, offset = _f(fd, 2, dtype=_D.UInt64), fd.define_tensor([], dtype=_D.UInt64)
    tensors = [_q(fd) for _ in range(5)]
    lse = _f(fd, -1, 2, -1)
    return fd.ops.sdpfa_bwd(*tensors, lse, 0.0, False, seed, offset, None)


def _cutlass(fd: Any) -> Any:
    fp4, e4m3, i32 = _D.Float4_e2m1fn, _D.Float8_e4m3fn, _D.Int32
    return fd.ops.cutlass_nvfp4_grouped_mm(
        _f(fd, 8, 32, dtype=fp4),
        _f(fd, 2, 32, 16, dtype=fp4),
        _f(fd, 128, 4, dtype=e4m3),
        _f(fd, 2, 128, 4, dtype=e4m3),
        _f(fd, 2),
        _f(fd, 2, 3, dtype=i32),
        _f(fd, 2, dtype=i32),
        _f(fd, 2, dtype=i32),
    )


def _ids(fd: Any, *shape: int) -> Any:
    return _f(fd, *shape, dtype=_D.Int)


def _groups(fd: Any) -> Any:
    return _f(fd, 3, dtype=_D.Int32)


# A definition of each op that isn't a row of the op table.
_SAMPLES: dict[str, Callable[[Any], Any]] = {
    "addcmul": lambda fd: fd.ops.addcmul(_f(fd), _f(fd), _f(fd), 2.0),
    "argsort": lambda fd: fd.ops.argsort(_f(fd), 1),
    "broadcast": lambda fd: fd.ops.broadcast(_f(fd), [False, True, False]),
    "broadcast_in_dim": lambda fd: fd.ops.broadcast_in_dim(_f(fd, 8), [4, 8], [1]),
    "cast": lambda fd: fd.ops.cast(_f(fd), _D.BFloat16),
    "cat": lambda fd: fd.ops.cat([_f(fd), _f(fd)], 0),
    "cummax": lambda fd: fd.ops.cummax(_f(fd), 1),
    "cummin": lambda fd: fd.ops.cummin(_f(fd), 1),
    "cumprod": lambda fd: fd.ops.cumprod(_f(fd), 1),
    "cumsum": lambda fd: fd.ops.cumsum(_f(fd), 1),
    "cutlass_nvfp4_grouped_mm": _cutlass,
    "embedding_fwd": lambda fd: fd.ops.embedding_fwd(_ids(fd, -1), _f(fd)),
    "expand": lambda fd: fd.ops.expand(_f(fd, 1, 8), [4, 8]),
    "full": lambda fd: fd.ops.full([4, 8], 1.0, _D.Float),
    "gather": lambda fd: fd.ops.gather(_f(fd), _ids(fd, -1, 4), 1),
    "grouped_mm": lambda fd: fd.ops.grouped_mm(_f(fd, -1, 4), _f(fd, 3, 4, 8), _groups(fd)),
    "index_select": lambda fd: fd.ops.index_select(_f(fd), _ids(fd, -1), 0),
    "iota": lambda fd: fd.ops.iota(8, 0, 1, _D.Int),
    "linear": lambda fd: fd.ops.linear(_f(fd), _f(fd, 4, 8)),
    "logical_right_shift": lambda fd: fd.ops.logical_right_shift(_ids(fd, 8), _ids(fd, 8)),
    "matmul": lambda fd: fd.ops.matmul(_f(fd), _f(fd, 8, 4)),
    "max": lambda fd: fd.ops.max(_f(fd), [1]),
    "min": lambda fd: fd.ops.min(_f(fd), [1]),
    "normal": lambda fd: fd.ops.normal(0.0, 1.0, [8], **_seed(fd)),
    "nv_block_quantize": lambda fd: fd.ops.nv_block_quantize(_f(fd, 4, 16)),
    "nv_grouped_block_quantize": lambda fd: fd.ops.nv_grouped_block_quantize(
        _f(fd, -1, 64), _groups(fd), _groups(fd)
    ),
    "pad": lambda fd: fd.ops.pad(_f(fd), [1, 1]),
    "permute": lambda fd: fd.ops.permute(_f(fd), [1, 0]),
    "preprocess_grouped_matmul_input_sf": lambda fd: fd.ops.preprocess_grouped_matmul_input_sf(
        _f(fd), _groups(fd), _groups(fd)
    ),
    "prod": lambda fd: fd.ops.prod(_f(fd), [1]),
    "rand_like": lambda fd: fd.ops.rand_like(_f(fd)),
    "randn_like": lambda fd: fd.ops.randn_like(_f(fd)),
    "reshape": lambda fd: fd.ops.reshape(_f(fd, 4, 8), [32]),
    "scaled_mm": lambda fd: fd.ops.scaled_mm(
        *(_f(fd, 32, 32, dtype=_D.Float8_e4m3fn) for _ in range(2)),
        *(_f(fd, 32, dtype=_D.Float8_e8m0fnu) for _ in range(2)),
    ),
    "scatter": lambda fd: fd.ops.scatter(_f(fd), _ids(fd, -1, 4), _f(fd, -1, 4), 1),
    "sdpfa_bwd": _attention_backward,
    "sdpfa_fwd": lambda fd: fd.ops.sdpfa_fwd(_q(fd), _q(fd), _q(fd)),
    "segment_set": lambda fd: fd.ops.segment_set(_f(fd)),
    "select": lambda fd: fd.ops.select(_f(fd), fd.define_scalar(_D.Int), 0),
    "set": lambda fd: fd.ops.set(_f(fd)),
    "sign": lambda fd: fd.ops.sign(_f(fd)),
    "slice": lambda fd: fd.ops.slice(_f(fd, 4, 8), [0, 2], [4, 6]),
    "squeeze": lambda fd: fd.ops.squeeze(_f(fd, 1, 8), [0]),
    "stride_order": lambda fd: fd.ops.stride_order(_f(fd), [0, 1]),
    "sum": lambda fd: fd.ops.sum(_f(fd), [1]),
    "take_along_axis": lambda fd: fd.ops.take_along_axis(_f(fd), _ids(fd, -1, 4), 1),
    "topk": lambda fd: fd.ops.topk(_f(fd), fd.define_scalar(2, _D.Int)),
    "triu": lambda fd: fd.ops.triu(_f(fd)),
    "truediv": lambda fd: fd.ops.truediv(_f(fd), _f(fd)),
    "uniform": lambda fd: fd.ops.uniform(0.0, 1.0, [8], **_seed(fd)),
    "var": lambda fd: fd.ops.var(_f(fd), [1]),
    "var_mean": lambda fd: fd.ops.var_mean(_f(fd), [1]),
    "welford": lambda fd: fd.ops.welford(_f(fd), [1]),
}
# Ops that give scalars; the host computes them.
_HOST = ("shape", "size")


def _seed(fd: Any) -> dict[str, Any]:
    return {"rng_seed": fd.define_scalar(_D.Int), "rng_offset": fd.define_scalar(_D.Int)}


@dataclass(frozen=True, slots=True)
class Coverage:
    """What runs one op: "kernel", "library" or "host", on the CPU and on a GPU."""

    op: str
    cpu: str
    cuda: str

    @property
    def kind(self) -> str:
        """The first word of the CPU's."""
        return self.cpu.split()[0]


def coverage() -> list[Coverage]:
    """One entry an op of `fd.ops`, by name."""
    return [_covered(name) for name in sorted(ops.__all__)]


def _covered(name: str) -> Coverage:
    if name in _HOST:
        return Coverage(name, "host", "host")
    called = {expr.op for expr in _live(name) if is_library(expr)}
    # The framework's generator gives seed and offset; the numbers are made in the kernel.
    called.discard("rng_state")
    if not called:
        return Coverage(name, "kernel", "kernel")
    with_numpy = all(op in REFERENCES or op in INDEX_OPS for op in called)
    cpu = "library (PyTorch or NumPy)" if with_numpy else "library (PyTorch)"
    return Coverage(name, cpu, "library (PyTorch)")


def _live(name: str) -> list[Any]:
    """The tensor expressions of a definition of one op."""
    if name in _SAMPLES:
        return _exprs(_SAMPLES[name])
    row = ROWS[name]
    dtype = next(d for d in (_D.Float, _D.Int, _D.Bool, _D.ComplexFloat) if supports(row, d))
    dtypes = [_D.Bool if name == "where" and i == 0 else dtype for i in range(len(row.args))]
    return _exprs(lambda fd: getattr(fd.ops, name)(*_operands(fd, name, dtypes)))


def _operands(fd: Any, name: str, dtypes: list[DataType]) -> Iterable[Any]:
    """Tensors; bounds of clamp and threshold are numbers."""
    for position, dtype in enumerate(dtypes):
        is_bound = name in ("clamp", "threshold") and position
        yield 0.5 if is_bound else _f(fd, dtype=dtype)


def _exprs(define: Callable[[Any], Any]) -> list[Any]:
    with FusionDefinition() as fd:
        made = define(fd)
        for out in made if isinstance(made, tuple) else (made,):
            if isinstance(out, TensorView):
                fd.add_output(out)
    assert fd.fusion is not None
    return [e for e in live_exprs(fd.fusion) if isinstance(e.outs[0], TensorView)]


def page() -> str:
    """The text of docs/ops.md."""
    kernel_types = ", ".join(dtype.name for dtype in KERNEL_DTYPES)
    others = [info for info in INFO.values() if not info.in_kernels and info.dlpack]
    moved, library = (
        ", ".join(info.dtype.name for info in others if info.is_moved is is_moved)
        for is_moved in (True, False)
    )
    lines = [_HEAD.format(kernel_types=kernel_types, moved_types=moved, library_types=library)]
    lines += ["| op | what it computes | CPU | CUDA |", "|---|---|---|---|"]
    for entry in coverage():
        function = getattr(ops, entry.op)
        names = ", ".join(inspect.signature(function).parameters)
        summary = inspect.cleandoc(function.__doc__).split("\n\n")[0].replace("\n", " ")
        text = summary.replace("|", "\\|")
        lines.append(f"| `{entry.op}({names})` | {text} | {entry.cpu} | {entry.cuda} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page, or print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--table", action="store_true", help="print counts; write nothing")
    if not parser.parse_args().table:
        PAGE.write_text(page())
        return
    found = coverage()
    counts = Counter(entry.kind for entry in found)
    for kind, count in sorted(counts.items()):
        names = [entry.op for entry in found if entry.kind == kind]
        listed = "" if kind == "kernel" else f": {', '.join(names)}"
        print(f"{kind:8} {count:4} of {len(found)} on CPU and CUDA{listed}")


if __name__ == "__main__":
    main()
