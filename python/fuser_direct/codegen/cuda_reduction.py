"""Pieces of CUDA text that the kernels with reductions share (`CudaRow` and `CudaColumn`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fuser_direct.codegen import cuda_expr as expr
from fuser_direct.codegen.cuda_body import UNROLL, Body
from fuser_direct.ir.kernel import GATHER, INDEX, LOAD, SUMS_OF_EXP, Stage


def begin_buffers(body: Body, axes: Sequence[int]) -> None:
    """Declares where each buffer begins at the current indices along `axes`."""
    for b, buffer in enumerate(body.kernel.buffers):
        if any(buffer.strides[a] for a in axes):
            constant = "" if buffer.is_output else "const "
            kind = f"{constant}{expr.storage_type(buffer.dtype)}"
            body.line(f"{kind}* const row{b} = {body.address(b, axes)};")
            body.base[b] = f"row{b}"


def points_range(body: Body, vector: int, active: str | None) -> None:
    """Declares the units of `vector` points of the flattened reduction space that are walked:
    [begin, end).

    Empty where the condition `active` is false. `steps` is the number of units along the innermost
    reduction axis. With edges, units begin `shift` points before the row.
    """
    kernel = body.kernel
    if body.has_edges:
        last = f"shift + (uindex_t)e{kernel.reduction_axes[0]} + {vector - 1}"
        end = f"({last}) / {vector}"
        body.line("const uindex_t begin = 0;")
        body.line(f"const uindex_t end = {f'{active} ? {end} : 0' if active else end};")
        return
    axes, per = kernel.reduction_axes, f" / {vector}" if vector > 1 else ""
    body.line(f"const uindex_t steps = (uindex_t)e{axes[-1]}{per};")
    units = " * ".join([f"(uindex_t)e{a}" for a in axes[:-1]] + ["steps"])
    begin, end = "0", units
    if kernel.is_split:
        body.line(f"const uindex_t units = {units};")
        body.line(f"const uindex_t part = (uindex_t)chunk{per};")
        begin = f"{body.index[kernel.axes.index('s')]} * part"
        end = "begin + part < units ? begin + part : units"
    body.line(f"const uindex_t begin = {begin};")
    body.line(f"const uindex_t end = {f'!{active} ? begin : {end}' if active else end};")


def declare_dividers(body: Body) -> None:
    """Prepares the divisions that find the place of each unit along the reduction axes."""
    axes = body.kernel.reduction_axes
    for axis in axes[1:]:
        extent = "steps" if axis == axes[-1] else f"(uindex_t)e{axis}"
        body.line(f"const fd_divider<uindex_t> by{axis}({extent});")
        body.dividers[extent] = f"by{axis}"


def centre(body: Body, total: int, n: int, seen: str, lanes: int = 0) -> None:
    """Declares `points`, how many values a thread has added to a pair (unless `seen` is empty: then
    they were counted), and takes the squares of their deviations relative to their mean.
    """
    kind = expr.register_type(body.kernel.nodes[n].dtype)
    if seen:
        body.line(f"{kind} points{n} = ({kind})({seen});")
    body.line(f"const {kind} inverse{n} = 1 / points{n};")
    count = f"points{n}, inverse{n}"
    if not lanes:
        body.line(f"a{n} = fd_centred(a{total}, a{n}, {count});")
        return
    with body.lanes() as lane:
        body.line(f"a{n}[{lane}] = fd_centred(a{total}[{lane}], a{n}[{lane}], {count});")


def declare_accumulator(body: Body, n: int, lanes: int = 0, name: str = "") -> None:
    """Declares the accumulator of reduce node `n`, an array where `lanes` isn't 0; or another of
    its kind.
    """
    node, name = body.kernel.nodes[n], name or f"a{n}"
    kind, start = expr.register_type(node.dtype), expr.identity(str(node.attr), node.dtype)
    if not lanes:
        body.line(f"{kind} {name} = {start};", str(node.attr))
        return
    body.line(f"{kind} {name}[{lanes}];", str(node.attr))
    body.line("#pragma unroll")
    body.line(f"for (int k = 0; k < {lanes}; ++k) {name}[k] = {start};")


def declare_lanes(body: Body, n: int) -> None:
    """Declares `w`, the lanes of a unit that reduce node `n` takes in together. Those outside the
    row change nothing.
    """
    node = body.kernel.nodes[n]
    body.line(f"{expr.register_type(node.dtype)} w{n}[{body.vector}];")
    if body.has_edges:
        with body.lanes() as lane:
            body.line(f"w{n}[{lane}] = {expr.identity(str(node.attr), node.dtype)};")


def accumulate(body: Body, n: int, into: str) -> None:
    """Adds the current value of reduce node `n`'s operand to the accumulator `into`."""
    body.line(f"{into} = {combine(body, n)}::of({into}, {operand_text(body, n)});")


def operand_text(body: Body, n: int) -> str:
    """The current value of reduce node `n`'s operand."""
    node = body.kernel.nodes[n]
    arg = node.args[0]
    return expr.cast_text(body.name(arg), body.kernel.nodes[arg].dtype, node.dtype)


def combine(body: Body, n: int) -> str:
    """Name of the device struct that combines two partial results of reduce node `n`; of a sum of
    exponentials, two that are relative to the same maximum.
    """
    attr = body.kernel.nodes[n].attr
    return f"fd_reduce_{'sum' if attr in SUMS_OF_EXP else attr}"


def exponential(body: Body, n: int) -> str:
    """Name of the device struct with the exponential that the sum of node `n` adds up."""
    return "fd_by_half_exp" if n in body.half_sums else "fd_by_exp"


def needs_index(body: Body, stage: Stage) -> bool:
    """Whether the loop of `stage`, loads apart, uses the indices along the reduction axes."""
    nodes = body.kernel.nodes
    wanted = [n for n in stage.loop if n not in body.declared and not body.is_plain_load(n)]
    return bool(stage.stores) or any(nodes[n].op in (INDEX, LOAD, GATHER) for n in wanted)


@contextmanager
def units(
    body: Body,
    first: str,
    count: int,
    step: int,
    keep: Sequence[str] = (),
    decoded: bool = True,
    opening: str = "",
    closing: str = "",
    unroll: int = 0,
) -> Iterator[None]:
    """Lines for each of `count` units of the reduction space, `step` apart from `first` on, that
    lies before `end`.

    `u` numbers them. keep: packs held in registers that this pass unpacks again; decoded:
    whether the lines need the indices along the reduction axes; opening, closing: lines for all
    `count` units, before and after the others. unroll: units written out at once, 0 for all.
    """
    axes = body.kernel.reduction_axes
    if unroll:
        body.line(f"{UNROLL} {unroll}")
    with body.block(f"for (int u = 0; u < {count}; ++u)", unroll=not unroll):
        for pack in keep:
            body.line(f"fd_keep({pack});")
        if opening:
            body.line(opening)
        body.line(f"const uindex_t unit = {first} + u * {step};")
        with body.block("if (unit < end)"):
            if body.has_edges:
                # Unsigned: after a signed difference, the compiler stores vectors word by word.
                where = f"(index_t)(unit * {body.vector} - shift)"
                body.line(f"const index_t {body.index[axes[0]]} = {where};")
            elif decoded:
                body.decode("unit", axes, {axes[-1]: "steps"})
            yield
        if closing:
            body.line(closing)
