"""What was fused, what was not, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from fuser_direct import FusionDefinition
from fuser_direct.records import dataclass

# One list for each `recording` that is open.
_listeners: list[list[GraphSummary]] = []


@dataclass(frozen=True, slots=True)
class RegionSummary:
    """One fusion: its ATen ops in order, and the definition (`.fec.kernels()` after a call)."""

    name: str
    ops: tuple[str, ...]
    num_inputs: int
    num_outputs: int
    definition: FusionDefinition

    def __str__(self) -> str:
        counted = ", ".join(f"{op} x{n}" if n > 1 else op for op, n in Counter(self.ops).items())
        kernels = ""
        if "fec" in self.definition.__dict__:
            kernels = f", {len(self.definition.fec.kernels())} kernels"
        return (
            f"{self.name}: {len(self.ops)} ops, {self.num_inputs} inputs, {self.num_outputs} "
            f"outputs{kernels}: {counted}"
        )


@dataclass(frozen=True, slots=True)
class EagerOp:
    """An ATen op that stays eager, how often, and why."""

    name: str
    count: int
    reason: str

    def __str__(self) -> str:
        return f"{self.name} x{self.count}: {self.reason}"


@dataclass(frozen=True, slots=True)
class GraphSummary:
    """One ATen graph: kind is forward, backward or inference."""

    kind: str
    regions: tuple[RegionSummary, ...]
    eager: tuple[EagerOp, ...]

    def __str__(self) -> str:
        fused = [f"  fused  {region}" for region in self.regions]
        eager = [f"  eager  {op}" for op in self.eager]
        return "\n".join([f"{self.kind} graph: {len(self.regions)} fusions", *fused, *eager])


@dataclass(frozen=True, slots=True)
class Explanation:
    """All graphs that were compiled, in order."""

    graphs: tuple[GraphSummary, ...]

    @property
    def num_fusions(self) -> int:
        """Fusions of all graphs."""
        return sum(len(graph.regions) for graph in self.graphs)

    def __str__(self) -> str:
        return "\n".join(map(str, self.graphs)) or "nothing was compiled"


def record(summary: GraphSummary) -> None:
    """Tell everyone who listens."""
    for listener in _listeners:
        listener.append(summary)


@contextmanager
def recording() -> Iterator[list[GraphSummary]]:
    """A list that fills with the summaries of graphs compiled inside the `with`."""
    summaries: list[GraphSummary] = []
    _listeners.append(summaries)
    try:
        yield summaries
    finally:
        _listeners[:] = [listener for listener in _listeners if listener is not summaries]


def explain(
    model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Explanation:
    """See `fuser_direct.torch_backend.explain`."""
    from fuser_direct.torch_backend import fuser_direct

    torch._dynamo.reset()
    with recording() as summaries:
        result = torch.compile(model, backend=fuser_direct)(*args, **kwargs)
        _backward(model, result, args, kwargs)
    return Explanation(tuple(summaries))


def _backward(model: Any, result: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Run the backward pass of all results that have one; `.grad` stays as it is."""
    leaves = torch.utils._pytree.tree_leaves(result)
    roots = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]
    given = [*torch.utils._pytree.tree_leaves((args, kwargs))]
    if isinstance(model, torch.nn.Module):
        given += model.parameters()
    wanted = [t for t in given if isinstance(t, torch.Tensor) and t.requires_grad]
    if roots and wanted:
        ones = [torch.ones_like(root) for root in roots]
        torch.autograd.grad(roots, wanted, ones, allow_unused=True)
