"""The one order in which a fusion's expressions are printed, compared and compiled."""

from __future__ import annotations

from collections.abc import Iterable

from fuser_direct.ir.fusion import Fusion
from fuser_direct.ir.values import Expr, Val


def needed_exprs(fusion: Fusion) -> list[Expr]:
    """The expressions that outputs need, each after those it reads.

    Depth first from the outputs in order, operands left to right; outputs that feed other outputs
    start no walk of their own. So the order follows from the definition's structure, not from the
    order of its calls. Random tensors that advance the framework's generator are the exception:
    their order is part of what a fusion means, so they come first, in the order of their calls.
    """
    ordered: list[Expr] = []
    done: set[Expr] = set()
    for random in _live_random(fusion):
        _walk_from(random, ordered, done)
    for output in _last_outputs(fusion):
        _walk_from(output, ordered, done)
    return ordered


def _live_random(fusion: Fusion) -> list[Val]:
    """The results of random ops without a seed that outputs need, in the order of their calls."""
    states = [expr for expr in fusion.exprs if expr.op == "rng_state"]
    if not states:
        return []
    needed = _ancestors(fusion.outputs()) | {*fusion.outputs()}
    drawn = [expr.outs[0] for state in states for expr in state.outs[0].uses()]
    return [val for val in drawn if val in needed]


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
