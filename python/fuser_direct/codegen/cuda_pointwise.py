"""CUDA text of kernels without a reduction (`CudaPointwise`)."""

from __future__ import annotations

from fuser_direct.codegen.cuda_body import Body, points
from fuser_direct.ir.kernel import Kernel
from fuser_direct.schedulers.dividers import divided_axes, launch_params
from fuser_direct.schedulers.schedule import CudaPointwise


def pointwise_text(kernel: Kernel, schedule: CudaPointwise) -> str:
    """The kernel function: all loads of a thread's units, then math and stores unit by unit."""
    body = Body(kernel, schedule.vector, schedule.vectorized, schedule.uniform)
    body.params = launch_params(kernel, schedule)
    if schedule.evict_last:
        body.declare_policy()
    body.uniform_values()
    body.flat = frozenset(b for b, is_flat in enumerate(schedule.flat) if is_flat)
    _count_units(body)
    body.declare_dividers(divided_axes(kernel, schedule))
    step = schedule.threads * schedule.unroll
    first = f"blockIdx.x * (uindex_t){step} + threadIdx.x"
    if schedule.grid_stride:
        with body.block(
            f"for (uindex_t first = {first}; first < units; first += gridDim.x * (uindex_t){step})"
        ):
            _tile(body, schedule)
    else:
        body.line(f"const uindex_t first = {first};")
        _tile(body, schedule)
    return body.text(schedule.threads, schedule.index_bits)


def _count_units(body: Body) -> None:
    """Declares `units`, and `steps` of the innermost axis."""
    axes = range(len(body.kernel.axes))
    if not axes:
        body.line("const uindex_t units = 1;")
        return
    steps = f"(uindex_t)e{body.innermost}" + (f" / {body.vector}" if body.vector > 1 else "")
    body.line(f"const uindex_t steps = {steps};")
    body.line(
        f"const uindex_t units = {' * '.join([f'(uindex_t)e{a}' for a in axes[:-1]] + ['steps'])};"
    )


def _tile(body: Body, schedule: CudaPointwise) -> None:
    kernel = body.kernel
    axes = tuple(range(len(kernel.axes)))
    listed, stores = points(kernel)
    nodes = [n for n in listed if n not in body.declared]
    loads = [n for n in nodes if body.is_plain_load(n)]
    for axis in axes:
        body.line(f"index_t i{axis}[{schedule.unroll}];")
        body.index[axis] = f"i{axis}[u]"
    for n in loads:
        body.line(f"fd_pack<{body.load_words(n)}> p{n}[{schedule.unroll}];")
    loop, unit = f"for (int u = 0; u < {schedule.unroll}; ++u)", f"first + u * {schedule.threads}"
    with body.block(loop, unroll=True):
        body.line(f"const uindex_t unit = {unit};")
        body.decode("unit", axes, {body.innermost: "steps"}, declare="")
        if loads:
            with body.block("if (unit < units)"):
                for n in loads:
                    body.line(f"p{n}[u] = {body.load(n, axes)};")
    with body.block(loop, unroll=True):
        body.line(f"const uindex_t unit = {unit};")
        with body.block("if (unit < units)"):
            body.unit(nodes, {n: f"p{n}[u]" for n in loads}, stores, axes)
