"""The form of a row of the capability table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from torch.fx import Node

from fuser_direct.records import dataclass
from fuser_direct.torch_backend.lowering import Lowering

# Gives the Val that the node computes, or a tuple of them.
Emit = Callable[[Lowering, Node], Any]
Refuse = Callable[[Node], "str | None"]
Kind = Literal["work", "view", "factory", "part"]


def accept(node: Node) -> str | None:
    """Takes any node."""
    return None


@dataclass(frozen=True, slots=True)
class Rule:
    """How one ATen overload is fused.

    emit: adds it to the region's fusion. refuse: why this very node can't be fused, or None. kind:
    `view`s and `factory`s are fused only beside work, since they cost nothing, or little, in eager
    mode; a `part` is one result of several.
    """

    emit: Emit
    refuse: Refuse = accept
    kind: Kind = "work"


Rules = dict[str, Rule]


def refuse_if(condition: Callable[[Node], Any], why: str) -> Refuse:
    """A `refuse` that says `why` where `condition` holds."""

    def refuse(node: Node) -> str | None:
        return why if condition(node) else None

    return refuse
