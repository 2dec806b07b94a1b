"""The one order in which a fusion's expressions are printed, compared and compiled."""

from __future__ import annotations

from collections.abc import Iterable

from fuser_direct.ir.fusion import Fusion
from fuser_direct.ir.values import Expr, Val


def needed_exprs(fusion: Fusion) -> list[Expr]:
    """The expressions that outputs need, each after those it reads.

    Depth first from the outputs in order, operands left to right; outputs that feed other outputs
    start no walk of their own. So the order follows from the definition's structure, not from the
    order of its calls.
    """
    ordered: list[Expr] = []
    done: set[Expr] = set()
    for output in _last_outputs(fusion):
        _walk_from(output, ordered, done)
    return ordered


def _walk_from(output: Val, ordered: list[Expr], done: set[Expr]) -> None:
    start = output.definition()
    if start is None or start in done:
        return
    # An explicit stack: chains are longer than Python's recursion limit.
    done.add(start)
    stack = [(start, iter(start.ins))]
    while stack:
        expr, operands = stack[-1]
        for operand in operands:
            definition = operand.definition()
            if definition is not None and definition not in done:
                done.add(definition)
                stack.append((definition, iter(definition.ins)))
                break
        else:
            ordered.append(expr)
            stack.pop()


def _last_outputs(fusion: Fusion) -> list[Val]:
    """Outputs that no other output is computed from, without repeats."""
    outputs: list[Val] = list(dict.fromkeys(fusion.outputs()))
    upstream = _ancestors(outputs)
    return [output for output in outputs if output not in upstream]


def _ancestors(vals: Iterable[Val]) -> set[Val]:
    """All values from which any of `vals` is computed, not counting `vals` for themselves."""
    seen: set[Val] = set()
    stack = list(vals)
    while stack:
        definition = stack.pop().definition()
        if definition is None:
            continue
        for operand in definition.ins:
            if operand not in seen:
                seen.add(operand)
                stack.append(operand)
    return seen
