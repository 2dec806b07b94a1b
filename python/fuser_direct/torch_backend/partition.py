"""Groups the nodes of an ATen graph into regions, each of which becomes one fusion.

A node joins the regions of its operands unless that would make a region depend on itself by way of
a node outside. What a node or region depends on is a bit mask over regions, kept transitively
closed, so grouping is linear in nodes times regions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from torch.fx import Node

# Work that a region needs to be worth a fusion.
_LEAST_WORK = 2


class Partitioner:
    """The state of grouping one graph.

    kind_of: the kind of rule of a node that may be fused, or None. is_ordered: nodes whose order
    among each other must stay, such as random ops.
    """

    def __init__(
        self, kind_of: Callable[[Node], str | None], is_ordered: Callable[[Node], bool]
    ) -> None:
        self._kind_of = kind_of
        self._is_ordered = is_ordered
        self._region_of: dict[Node, int] = {}
        self._members: list[list[Node]] = []
        # For each region the regions it depends on, itself not among them.
        self._needs: list[int] = []
        # For each node outside of all regions, the regions it depends on directly or by way of
        # such nodes.
        self._mask: dict[Node, int] = {}

    def run(self, nodes: Sequence[Node]) -> list[list[Node]]:
        """Regions, each in graph order."""
        last_ordered: Node | None = None
        for node in nodes:
            kind = self._kind_of(node)
            if kind in ("work", "view", "part"):
                self._place(node, kind)
            if node in self._region_of:
                continue
            self._mask[node] = self._union(node.all_input_nodes)
            if self._is_ordered(node):
                if last_ordered is not None:
                    self._mask[node] |= self._mask[last_ordered]
                last_ordered = node
        return [members for members in self._members if members]

    def _union(self, nodes: Collection[Node]) -> int:
        mask = 0
        for node in nodes:
            region = self._region_of.get(node)
            mask |= self._mask.get(node, 0) if region is None else 1 << region
        return mask

    def _closed(self, mask: int) -> int:
        """`mask` with all that its regions need."""
        total, rest = mask, mask
        while rest:
            region = (rest & -rest).bit_length() - 1
            total |= self._needs[region]
            rest &= rest - 1
        return total

    def _place(self, node: Node, kind: str) -> None:
        candidates = sorted(
            {self._region_of[n] for n in node.all_input_nodes if n in self._region_of}, reverse=True
        )
        candidates = [
            region
            for region in candidates
            if self._device(self._members[region][0]) == self._device(node)
        ]
        home: int | None = None
        for region in candidates:
            if home is None:
                home = region if self._joins(node, region) else None
            else:
                self._merge(home, region)
        if home is None:
            if kind != "work":
                return
            home = len(self._members)
            self._members.append([])
            self._needs.append(0)
            self._join(node, home)

    def _device(self, node: Node) -> object:
        value = node.meta["val"]
        return (value[0] if isinstance(value, (tuple, list)) else value).device

    def _joins(self, node: Node, region: int) -> bool:
        outside = [n for n in node.all_input_nodes if self._region_of.get(n) != region]
        if self._closed(self._union(outside)) >> region & 1:
            return False
        self._join(node, region)
        return True

    def _join(self, node: Node, region: int) -> None:
        self._region_of[node] = region
        self._members[region].append(node)
        outside = [n for n in node.all_input_nodes if self._region_of.get(n) != region]
        self._add_needs(region, self._closed(self._union(outside)))

    def _add_needs(self, region: int, more: int) -> None:
        if more & ~self._needs[region] == 0:
            return
        self._needs[region] |= more
        for other, needs in enumerate(self._needs):
            if needs >> region & 1:
                self._needs[other] |= self._needs[region]

    def _merge(self, home: int, other: int) -> None:
        """Make one region of two, unless one needs the other by way of something outside."""
        both = 1 << home | 1 << other
        for region in (home, other):
            if self._indirect(region, both) & both:
                return
        for node in self._members[other]:
            self._region_of[node] = home
        self._members[home] += self._members[other]
        self._members[other] = []
        joined = (self._needs[home] | self._needs[other]) & ~both
        self._needs[other] = 0
        for node, mask in self._mask.items():
            if mask >> other & 1:
                self._mask[node] = mask & ~(1 << other) | 1 << home
        for region, needs in enumerate(self._needs):
            if needs & both:
                self._needs[region] = needs & ~(1 << other) | 1 << home | joined
        self._needs[home] = joined

    def _indirect(self, region: int, both: int) -> int:
        """What `region` needs, but for the members of `both` regions that it reads itself."""
        outside = [
            n
            for member in self._members[region]
            for n in member.all_input_nodes
            if n not in self._region_of or not both >> self._region_of[n] & 1
        ]
        return self._closed(self._union(outside))


def work(members: Collection[Node], kind_of: Callable[[Node], str | None]) -> int:
    """How many members compute something."""
    return sum(1 for node in members if kind_of(node) == "work")


def is_worthwhile(members: Collection[Node], kind_of: Callable[[Node], str | None]) -> bool:
    """Whether a region saves anything over eager execution."""
    return work(members, kind_of) >= _LEAST_WORK
