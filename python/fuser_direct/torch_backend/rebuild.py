"""Replaces the regions of an ATen graph by calls of fusions."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable

import torch
from torch.fx import Graph, GraphModule, Node

from fuser_direct.torch_backend import table
from fuser_direct.torch_backend.partition import Partitioner, is_worthwhile
from fuser_direct.torch_backend.region import Refused, Region, build
from fuser_direct.torch_backend.report import EagerOp, GraphSummary

log = logging.getLogger("fuser_direct.torch_backend")
# Each attempt finds at least one more node that stays eager.
_MAX_ATTEMPTS = 32


def fuse(gm: GraphModule, kind: str, emulate: bool) -> tuple[GraphModule, GraphSummary]:
    """`gm` with its regions fused, and a summary. `gm` itself may be changed."""
    refusals = {node: table.refusal(node) for node in gm.graph.nodes if node.op == "call_function"}
    regions: list[Region] = []
    for attempt in range(_MAX_ATTEMPTS):
        if attempt == _MAX_ATTEMPTS - 1:
            refusals = dict.fromkeys(refusals, "other ops of this graph could not be fused")
        found = _attempt(gm.graph, refusals, emulate)
        if found is not None:
            regions = found
            break
    summary = _summary(gm, kind, regions, refusals)
    if not regions:
        return gm, summary
    made = GraphModule(gm, _Rebuild(gm.graph, regions).run(gm.graph))
    made.meta = dict(gm.meta)
    return made, summary


def _attempt(graph: Graph, refusals: dict[Node, str | None], emulate: bool) -> list[Region] | None:
    """The regions of `graph`; None if one could not be built, after a new refusal was noted."""

    def kind_of(node: Node) -> str | None:
        if refusals.get(node, "not a call") is not None:
            return None
        rule = table.rule_of(node)
        return None if rule is None else rule.kind

    positions = {node: i for i, node in enumerate(graph.nodes)}
    scalars = {
        node.meta["val"].node.expr: node
        for node in graph.nodes
        if node.op == "placeholder" and isinstance(node.meta.get("val"), torch.SymInt)
    }
    regions: list[Region] = []
    for members in Partitioner(kind_of, _is_ordered).run(list(graph.nodes)):
        members = _trimmed(sorted(members, key=positions.__getitem__), kind_of)
        if not is_worthwhile(members, kind_of):
            continue
        members = _with_factories(members, kind_of, positions)
        try:
            regions.append(build(members, scalars, emulate, len(regions)))
        except Refused as refused:
            log.debug("%s stays eager: %s", refused.node, refused.reason)
            refusals[refused.node] = refused.reason
            return None
    return regions


def _is_ordered(node: Node) -> bool:
    """Whether a call draws random numbers or writes to something."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return torch.Tag.nondeterministic_seeded in target.tags or target._schema.is_mutable
    return isinstance(target, torch._ops.HigherOrderOperator)


def _trimmed(members: list[Node], kind_of: Callable[[Node], str | None]) -> list[Node]:
    """`members` without the views that only nodes outside read: those stay views, of an output.

    A view that is read both inside and outside is computed in both places; see `_Rebuild`.
    """
    inside = set(members)
    for node in reversed(members):
        if kind_of(node) == "view" and not any(user in inside for user in node.users):
            inside.remove(node)
    return [node for node in members if node in inside]


def _with_factories(
    members: list[Node], kind_of: Callable[[Node], str | None], positions: dict[Node, int]
) -> list[Node]:
    """`members` and the factories they read, which are cheaper to compute than to read."""
    made = {n for node in members for n in node.all_input_nodes if kind_of(n) == "factory"}
    return sorted({*members, *made}, key=positions.__getitem__)


def _summary(
    gm: GraphModule, kind: str, regions: list[Region], refusals: dict[Node, str | None]
) -> GraphSummary:
    inside = {node for region in regions for node in region.members}
    eager: dict[tuple[str, str], int] = {}
    for node, why in refusals.items():
        rule = table.rule_of(node)
        is_free = rule is not None and rule.kind == "view" and why is None
        if node not in inside and not is_free and isinstance(node.target, torch._ops.OperatorBase):
            name = str(node.target)
            reason = why or "too little around it to be worth a fusion"
            eager[name, reason] = eager.get((name, reason), 0) + 1
    ops = tuple(EagerOp(name, count, why) for (name, why), count in sorted(eager.items()))
    return GraphSummary(kind, tuple(region.summary for region in regions), ops)


class _Rebuild:
    """Copies a graph; the first node that needs a region makes its call appear.

    A view inside a region that something outside reads too is copied outside, where it is a view of
    an output again.
    """

    def __init__(self, old: Graph, regions: list[Region]) -> None:
        self.new = Graph()
        self._made: dict[Node, Node] = {}
        self._region_of = {node: r for r in regions for node in r.owned}
        self._pending: dict[Node, Node] = {}
        last: Node | None = None
        for node in old.nodes:
            if _is_ordered(node):
                if last is not None:
                    self._pending[node] = last
                last = node

    def run(self, old: Graph) -> Graph:
        """The new graph. Views and factories are copied only where something reads them."""
        for node in old.nodes:
            region = self._region_of.get(node)
            rule = table.rule_of(node)
            is_lazy = rule is not None and rule.kind in ("view", "factory")
            if node in region.outputs if region is not None else not is_lazy:
                self.need(node)
        return self.new

    def need(self, node: Node) -> Node:
        """The new node for `node`. Iterative, since graphs are deep."""
        stack = [node]
        while stack:
            top = stack[-1]
            if top in self._made:
                stack.pop()
                continue
            missing = [n for n in self._reads(top) if n not in self._made]
            if missing:
                stack += missing
                continue
            stack.pop()
            region = self._region_of.get(top)
            if region is not None and top in region.outputs:
                self._call(region)
            else:
                self._made[top] = self.new.node_copy(top, self._made.__getitem__)
        return self._made[node]

    def _reads(self, node: Node) -> list[Node]:
        region = self._region_of.get(node)
        if region is not None and node in region.outputs:
            return region.inputs
        before = [self._pending[node]] if node in self._pending else []
        return [*node.all_input_nodes, *before]

    def _call(self, region: Region) -> None:
        arguments = tuple(self._made[n] for n in region.inputs)
        call = self.new.call_function(region.function, arguments)
        for position, output in enumerate(region.outputs):
            item = self.new.call_function(operator.getitem, (call, position))
            item.meta = dict(output.meta)
            self._made[output] = item
