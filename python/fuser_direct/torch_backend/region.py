"""One region of an ATen graph as a fusion, and as the eager ops that it replaces."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from fuser_direct import FusionDefinition
from fuser_direct.errors import FuserError
from fuser_direct.ir.values import TensorView
from fuser_direct.records import dataclass
from fuser_direct.torch_backend import table
from fuser_direct.torch_backend.lowering import DTYPES, Lowering, Unmapped, is_tensor
from fuser_direct.torch_backend.report import RegionSummary

log = logging.getLogger("fuser_direct.torch_backend")


class Refused(Exception):
    """A node could not be fused; it stays eager."""

    def __init__(self, node: Node, reason: str) -> None:
        super().__init__(f"{node}: {reason}")
        self.node = node
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Region:
    """A fused part of a graph.

    members: its nodes in graph order; owned: those that it computes for others too (factories are
    copied); inputs, outputs: nodes as arguments and results of `function` stand for them.
    """

    members: tuple[Node, ...]
    owned: tuple[Node, ...]
    inputs: list[Node]
    outputs: list[Node]
    function: Callable[..., Any]
    summary: RegionSummary


def build(
    members: Sequence[Node], scalars: Mapping[Any, Node], emulate: bool, index: int
) -> Region:
    """The region of `members`. Raises Refused for a node that no fusion takes."""
    inside = set(members)
    owned = tuple(node for node in members if _kind(node) != "factory")
    outputs = _outputs(members, inside)
    read = dict.fromkeys(
        n for node in owned for n in node.all_input_nodes if n not in inside and is_tensor(n)
    )
    device = _fake(owned[0]).device
    fd = FusionDefinition()
    failure: Refused | None = None
    with fd:
        # Leaving the definition by an exception prints it.
        try:
            inputs = _define(fd, members, list(read), outputs, device, scalars, emulate)
        except Refused as refused:
            failure = refused
    if failure is not None:
        raise failure
    is_home_known = any(_fake(n).ndim or device.type == "cpu" for n in inputs if is_tensor(n))
    call = _call(fd, None if is_home_known else str(device))
    summary = RegionSummary(f"fused_{index}", _names(owned), len(inputs), len(outputs), fd)
    function = _guarded(call, summary.name, _fallback(members, inputs, outputs))
    return Region(tuple(members), owned, inputs, outputs, function, summary)


def _kind(node: Node) -> str:
    rule = table.rule_of(node)
    assert rule is not None
    return rule.kind


def _fake(node: Node) -> Any:
    value = node.meta["val"]
    return value[0] if isinstance(value, (tuple, list)) else value


def _names(members: Sequence[Node]) -> tuple[str, ...]:
    """The ATen ops of a region in order, without overloads."""
    return tuple(
        str(node.target).removeprefix("aten.").rpartition(".")[0]
        for node in members
        if _kind(node) != "part"
    )


def _outputs(members: Sequence[Node], inside: set[Node]) -> list[Node]:
    """Members that others read, also by way of a view that is repeated outside."""
    wanted = []
    outside: set[Node] = set()
    for node in reversed(members):
        if not any(user not in inside or user in outside for user in node.users):
            continue
        if _kind(node) in ("view", "factory"):
            outside.add(node)
        elif is_tensor(node):
            wanted.append(node)
    return wanted[::-1]


def _define(
    fd: FusionDefinition,
    members: Sequence[Node],
    read: Sequence[Node],
    outputs: Sequence[Node],
    device: torch.device,
    scalars: Mapping[Any, Node],
    emulate: bool,
) -> list[Node]:
    """Fill `fd`; returns the nodes that its inputs stand for."""
    low = Lowering(fd, device, emulate, scalars)
    for node in read:
        low.define_input(node)
    for node in members:
        rule = table.rule_of(node)
        assert rule is not None
        with _refusing(node):
            low.set_value(node, rule.emit(low, node))
    for node in outputs:
        with _refusing(node):
            fd.add_output(_stored(low, node))
    return low.inputs


@contextmanager
def _refusing(node: Node) -> Iterator[None]:
    """Whatever is raised inside means that `node` stays eager."""
    try:
        yield
    except (FuserError, Unmapped) as error:
        raise Refused(node, str(error).partition("\n")[0]) from error
    except Exception as error:
        log.debug("can't lower %s", node.format_node(), exc_info=True)
        raise Refused(node, f"{type(error).__name__}: {error}") from error


def _stored(low: Lowering, node: Node) -> TensorView:
    """The value of `node` in its own dtype and in the memory order of the traced graph."""
    fake = node.meta["val"]
    value: TensorView = low.cast(low.held(node), DTYPES[fake.dtype])
    if value.ndim != fake.ndim:
        raise Unmapped(f"it became rank {value.ndim}, not {fake.ndim}")
    stored: TensorView = low.ops.stride_order(value, _stride_order(fake))
    return stored


def _stride_order(fake: Any) -> list[int]:
    """For each dim its rank in memory, from the fastest, 0. Raises Unmapped if it isn't dense."""
    sizes, strides = (
        [_hint(number) for number in numbers] for numbers in (fake.shape, fake.stride())
    )
    if None in sizes or None in strides:
        # Sizes that data decides; the graph's own strides then are row-major ones.
        return list(range(fake.ndim - 1, -1, -1))
    rank = range(fake.ndim)
    for dims in (list(rank), sorted(rank, key=lambda d: -strides[d])):
        if _is_dense([sizes[d] for d in dims], [strides[d] for d in dims]):
            return [fake.ndim - 1 - dims.index(dim) for dim in rank]
    raise Unmapped("the result is not dense in memory")


def _is_dense(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether dims, from the outermost in, leave no gaps; those of size 1 may have any stride."""
    dense = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1 and stride != dense:
            return False
        dense *= size
    return True


def _hint(number: Any) -> Any:
    """An int that a symbolic one stood for when the graph was traced, or None."""
    return number if isinstance(number, int) else number.node.hint


def _call(fd: FusionDefinition, device: str | None) -> Callable[[Sequence[Any]], list[Any]]:
    if device is None:
        # Looked up at each call: after the first one `fd.execute` is the executor's own entry.
        return lambda inputs: fd.execute(inputs)
    return lambda inputs: fd.execute(inputs, device=device)


def _fallback(
    members: Sequence[Node], inputs: Sequence[Node], outputs: Sequence[Node]
) -> Callable[[], GraphModule]:
    """Makes the eager form of a region, when it is needed."""

    def make() -> GraphModule:
        graph = Graph()
        made = {node: graph.placeholder(f"arg{i}") for i, node in enumerate(inputs)}
        for node in members:
            made[node] = graph.node_copy(node, made.__getitem__)
        graph.output([made[node] for node in outputs])
        return GraphModule(torch.nn.Module(), graph)

    return make


def _guarded(
    call: Callable[[Sequence[Any]], list[Any]], name: str, fallback: Callable[[], GraphModule]
) -> Callable[..., list[Any]]:
    """`call` over separate arguments; once it has failed, the eager ops instead."""
    eager: GraphModule | None = None

    def function(*inputs: Any) -> list[Any]:
        nonlocal eager
        if eager is None:
            try:
                return call(inputs)
            except FuserError:
                log.warning("%s runs eagerly, since its fusion failed", name, exc_info=True)
                eager = fallback()
        results: list[Any] = eager(*inputs)
        return results

    function.__name__ = function.__qualname__ = name
    return function
