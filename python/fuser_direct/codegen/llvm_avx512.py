"""AVX-512 instructions without a counterpart in plain IR, over vectors of any number of registers.

Only for targets with `CpuTarget.has_float_fixes`.
"""

from __future__ import annotations

from fuser_direct.codegen.llvm_builder import Builder
from fuser_direct.codegen.llvm_types import V, constant

# Floats in a register.
LANES = 16
# VFIXUPIMMPS looks up what to do by the kind of its second operand, 4 bits each: kinds 0 and 1 are
# quiet and signalling NaN, 2 is "that operand, as a quiet NaN"; 0 leaves the first operand.
_NAN_TABLE = 0x22
# VRANGEPS: the smaller or larger, with the sign of the chosen operand.
_RANGE = {"min": 4, "max": 5}
# No instruction overrides the rounding mode of the context.
_CURRENT_ROUNDING = 4


def applies(builder: Builder, x: V) -> bool:
    """Whether the functions here can be used on `x`."""
    return builder.target.has_float_fixes and x.elem == "float" and x.lanes % LANES == 0


def keep_nan(b: Builder, x: V, source: V) -> V:
    """`x`, but where `source` is NaN that NaN, quiet."""
    name = "llvm.x86.avx512.mask.fixupimm.ps.512"
    table, every = constant(_NAN_TABLE, "i32", LANES), constant(-1, "i16")
    rest = (table, constant(0, "i32"), every, constant(_CURRENT_ROUNDING, "i32"))
    pairs = zip(b.cut(x, LANES), b.cut(source, LANES), strict=True)
    return b.join([b.call(name, "float", LANES, one, other, *rest) for one, other in pairs])


def extreme(b: Builder, kind: str, x: V, y: V) -> V:
    """The "min" or "max" of numbers, of which -0.0 is the smaller zero; any value for NaN."""
    name = "llvm.x86.avx512.mask.range.ps.512"
    control, every = constant(_RANGE[kind], "i32"), constant(-1, "i16")
    parts = []
    for one, other in zip(b.cut(x, LANES), b.cut(y, LANES), strict=True):
        rest = (one, every, constant(_CURRENT_ROUNDING, "i32"))
        parts.append(b.call(name, "float", LANES, one, other, control, *rest))
    return b.join(parts)


def nan_flags(b: Builder, x: V) -> V:
    """LANES flags; one of them is set if and only if a lane of `x` is NaN."""
    parts = b.cut(x, LANES)
    if len(parts) == 1:
        return b.fcmp("uno", x, x)
    flags = [b.fcmp("uno", parts[k], parts[k + 1]) for k in range(0, len(parts), 2)]
    while len(flags) > 1:
        flags = [b.or_(flags[k], flags[k + 1]) for k in range(0, len(flags), 2)]
    return flags[0]
