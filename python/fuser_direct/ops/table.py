"""The op table: one row a pointwise op, and nothing about that op anywhere else.

From these rows follow the functions of `fd.ops`, the type stub, both code generators (which look
rows up by name), the reference evaluation and the tests. Ops that are made of other ops (`sign`,
`truediv`, `var`, ...) have no row: they are small functions in `composite.py` and leave only rows
behind.

What a row can see. Operands have been promoted when the op was defined, by explicit `cast` and
`broadcast` expressions, so every tensor operand has the row's operand dtype (`Expr.operand_dtype`;
exception: operand 0 of a `select` row is Bool). A scalar operand may still have another width of
the same kind, such as a Double constant added to a Float tensor: convert it to the operand dtype,
in which the row is evaluated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from fuser_direct.dtypes import COMPLEX_OF, COMPONENT, INFO
from fuser_direct.enums import DataType
from fuser_direct.records import dataclass

Rule = Literal[
    "default",
    "float",
    "same",
    "component",
    "predicate",
    "compare",
    "logical",
    "complex",
    "select",
    "bounded",
    "random",
]
"""How operand and result dtypes follow from what the user passed:

default     operands promoted to a common dtype, half types to Float; the result has it
float       as default, and int or bool becomes Float
same        no promotion; the result has the operand's dtype (half stays half)
component   no promotion; complex gives its component type, others themselves
predicate   no promotion; the result is Bool
compare     operands as default; the result is Bool
logical     operands cast to Bool; the result is Bool
complex     two real operands of one dtype; the result is the complex type over it
select      operand 0 is Bool; the others promoted with half types kept; the result has their dtype
bounded     operand 0 keeps its dtype, which the result has; the others are scalars converted to its
kind
random      all operands are Int; the row is evaluated in, and gives, Float or Double
"""

Domain = Literal[
    "any",
    "small",
    "positive",
    "nonzero",
    "unit",
    "open_unit",
    "open_two",
    "ge1",
    "gtm1",
    "exponent",
    "shift",
    "weight",
    "index",
]
"""What values an operand is sampled from in tests:

any  every value with infinities, NaN and both zeros where the type has them;  small  |x| < 8;
positive  0 < x < 8; nonzero  0.1 < |x| < 8 (ints: not 0);  unit  -1..1;  open_unit  inside -1..1;
open_two  inside 0..2;  ge1  1 <= x < 8; gtm1  -1 < x < 8;  exponent  -4..4 (ints: 0..5);  shift  0
<= x < 31;  weight  0..1;  index  a position, 0 <= x < 2**40.
"""


@dataclass(frozen=True, slots=True)
class PointwiseOp:
    """One pointwise op.

    name: of the function, of the expression, of the LLVM builder method and of the reference.
    args: names of the operands, which also give the arity.
    kinds: letters of the kinds the row is evaluated in: f float, i int, b bool, c complex.
    doc: one line that says what it computes.
    domains: what each operand is sampled from in tests.
    cuda: text over operands ("{0} + {1}"), or empty for a call of the device function `fd_<name>`.
    symbol: the operator in printed math, or empty for function style.
    printed: the function's name in printed math if it isn't `name`; is_libm: it gets an `f` for
    Float. refusal: what the error says when no kind fits, or empty for a general text. instead:
    pairs (kind letter, op): operands of that kind define that op in place of the row.
    """

    name: str
    rule: Rule
    args: tuple[str, ...]
    kinds: str
    doc: str
    domains: tuple[Domain, ...]
    cuda: str = ""
    symbol: str = ""
    printed: str = ""
    is_libm: bool = False
    refusal: str = ""
    instead: tuple[tuple[str, str], ...] = ()

    @property
    def arity(self) -> int:
        """Number of operands."""
        return len(self.args)

    def cuda_text(self, operands: Sequence[str]) -> str:
        """The CUDA expression over operand texts: names, or literals in parentheses."""
        if self.cuda:
            return self.cuda.format(*operands)
        return f"fd_{self.name}({', '.join(operands)})"


def _unary(
    name: str,
    rule: Rule,
    kinds: str,
    doc: str,
    domain: Domain = "any",
    cuda: str = "",
    symbol: str = "",
    printed: str = "",
    is_libm: bool = False,
    refusal: str = "",
    instead: tuple[tuple[str, str], ...] = (),
) -> PointwiseOp:
    domains = (domain,)
    return PointwiseOp(
        name, rule, ("x",), kinds, doc, domains, cuda, symbol, printed, is_libm, refusal, instead
    )


def _math(name: str, kinds: str, doc: str, domain: Domain = "any") -> PointwiseOp:
    return _unary(name, "float", kinds, doc, domain, is_libm=True)


def _binary(
    name: str,
    rule: Rule,
    kinds: str,
    doc: str,
    domains: tuple[Domain, Domain] = ("any", "any"),
    operator: str = "",
    printed: str = "",
    is_libm: bool = False,
    refusal: str = "",
    cuda: str | None = None,
    instead: tuple[tuple[str, str], ...] = (),
) -> PointwiseOp:
    text = ("{0} " + operator + " {1}" if operator else "") if cuda is None else cuda
    args = ("lhs", "rhs")
    return PointwiseOp(
        name, rule, args, kinds, doc, domains, text, operator, printed, is_libm, refusal, instead
    )


_INT = "input must have integral type"
_BITS = "Integer or boolean input is required for"
_INT_IS_WHOLE = (("i", "set"),)

_ROWS = (
    # --- unary, floating result ---
    _math("acos", "fc", "Arc cosine.", "unit"),
    _math("acosh", "fc", "Inverse hyperbolic cosine.", "ge1"),
    _math("asin", "fc", "Arc sine.", "unit"),
    _math("asinh", "fc", "Inverse hyperbolic sine.", "small"),
    _math("atan", "fc", "Arc tangent.", "small"),
    _math("atanh", "fc", "Inverse hyperbolic tangent.", "open_unit"),
    _math("cos", "fc", "Cosine.", "small"),
    _math("cosh", "fc", "Hyperbolic cosine.", "small"),
    _math("exp", "fc", "e to the power of x.", "small"),
    _math("exp2", "f", "2 to the power of x.", "small"),
    _math("expm1", "f", "exp(x) - 1, accurate near 0.", "small"),
    _math("erf", "f", "Error function.", "small"),
    _math("erfc", "f", "Complementary error function, 1 - erf(x).", "small"),
    _math("erfinv", "f", "Inverse of erf; infinite at -1 and 1, NaN beyond.", "open_unit"),
    _math("erfcinv", "f", "Inverse of erfc: erfinv(1 - x).", "open_two"),
    _math("lgamma", "f", "Logarithm of the absolute value of the gamma function.", "positive"),
    _math("log", "fc", "Natural logarithm.", "positive"),
    _math("log10", "fc", "Logarithm to base 10.", "positive"),
    _math("log1p", "f", "log(1 + x), accurate near 0.", "gtm1"),
    _math("log2", "fc", "Logarithm to base 2.", "positive"),
    _unary("reciprocal", "float", "fc", "1 / x, correctly rounded.", "nonzero"),
    _math("rsqrt", "fc", "1 / sqrt(x).", "positive"),
    _unary("sigmoid", "float", "fc", "1 / (1 + exp(-x)).", "small"),
    _math("sin", "fc", "Sine.", "small"),
    _math("sinh", "fc", "Hyperbolic sine.", "small"),
    _math("sqrt", "fc", "Square root.", "positive"),
    _math("tan", "fc", "Tangent.", "unit"),
    _math("tanh", "fc", "Hyperbolic tangent.", "small"),
    # --- unary, dtype kept ---
    _unary("neg", "default", "fic", "-x.", cuda="-{0}", symbol="-"),
    _unary(
        "abs",
        "component",
        "fic",
        "Absolute value; of complex: the modulus.",
        printed="abs",
        is_libm=True,
    ),
    _unary("ceil", "same", "f", "Least integer not below x.", is_libm=True, instead=_INT_IS_WHOLE),
    _unary(
        "floor", "same", "f", "Greatest integer not above x.", is_libm=True, instead=_INT_IS_WHOLE
    ),
    _unary(
        "round",
        "same",
        "f",
        "Nearest integer, halves to even.",
        printed="nearbyint",
        is_libm=True,
        instead=_INT_IS_WHOLE,
    ),
    _unary("trunc", "same", "f", "Integer part, toward zero.", is_libm=True, instead=_INT_IS_WHOLE),
    _unary("frac", "same", "f", "x - trunc(x), with the sign of x.", "small"),
    _unary("relu", "same", "fi", "0 where x <= 0, else x; NaN stays."),
    _unary("silu", "same", "f", "x * sigmoid(x).", "small"),
    _unary(
        "bitwise_not",
        "same",
        "i",
        "All bits flipped.",
        cuda="~{0}",
        symbol="~",
        refusal="input must have integral or boolean type",
        instead=(("b", "logical_not"),),
    ),
    _unary("logical_not", "logical", "b", "Whether x is 0 or false.", cuda="!{0}", symbol="!"),
    # --- unary, Bool or component result ---
    _unary("signbit", "predicate", "fi", "Whether the sign bit is set, as it is for -0.0."),
    _unary("isfinite", "predicate", "fibc", "Whether x is neither infinite nor NaN."),
    _unary("isinf", "predicate", "fibc", "Whether x, or a component of it, is infinite."),
    _unary("isnan", "predicate", "fibc", "Whether x, or a component of it, is NaN."),
    _unary("isneginf", "predicate", "fib", "Whether x is minus infinity."),
    _unary("isposinf", "predicate", "fib", "Whether x is plus infinity."),
    _unary("isreal", "predicate", "fibc", "Whether the imaginary part is 0."),
    _unary(
        "real",
        "component",
        "c",
        "Real part.",
        printed="std::real",
        instead=(("f", "set"), ("i", "set"), ("b", "set")),
    ),
    _unary(
        "imag",
        "component",
        "c",
        "Imaginary part.",
        printed="std::imag",
        refusal="imag not supported for non-complex tensors",
    ),
    # --- binary arithmetic ---
    _binary("add", "default", "fibc", "lhs + rhs; of Bool: or.", operator="+"),
    _binary("sub", "default", "fic", "lhs - rhs.", operator="-"),
    _binary("mul", "default", "fibc", "lhs * rhs; of Bool: and.", operator="*"),
    _binary(
        "div",
        "default",
        "fic",
        "lhs / rhs, correctly rounded; ints truncate toward zero, and by 0 give 0.",
        ("any", "nonzero"),
        operator="/",
        cuda="",
    ),
    _binary(
        "mod",
        "default",
        "i",
        "Remainder with the sign of lhs; by 0 gives 0.",
        ("any", "nonzero"),
        operator="%",
        cuda="",
        refusal=_INT,
    ),
    _binary(
        "fmod",
        "default",
        "fi",
        "Remainder with the sign of lhs; ints by 0 give 0.",
        ("small", "nonzero"),
        is_libm=True,
    ),
    _binary(
        "remainder",
        "default",
        "fi",
        "Remainder with the sign of rhs; ints by 0 give 0.",
        ("small", "nonzero"),
    ),
    _binary(
        "pow",
        "default",
        "fic",
        "lhs to the power of rhs; ints wrap; a negative exponent gives 0 unless lhs is 1 or -1.",
        ("positive", "exponent"),
        is_libm=True,
    ),
    _binary(
        "atan2", "float", "f", "Angle of the point (rhs, lhs).", ("small", "small"), is_libm=True
    ),
    _binary(
        "nextafter",
        "default",
        "f",
        "The next value after lhs toward rhs.",
        is_libm=True,
        refusal="Promoted type must be single or double precision float",
    ),
    _binary(
        "minimum", "default", "fib", "The lesser; NaN wins; -0.0 is less than 0.0.", printed="fmin"
    ),
    _binary(
        "maximum",
        "default",
        "fib",
        "The greater; NaN wins; 0.0 is greater than -0.0.",
        printed="fmax",
    ),
    # --- comparisons and logic ---
    _binary("eq", "compare", "fibc", "lhs == rhs.", operator="=="),
    _binary("ne", "compare", "fibc", "lhs != rhs; true for NaN.", operator="!="),
    _binary("lt", "compare", "fib", "lhs < rhs.", operator="<"),
    _binary("le", "compare", "fib", "lhs <= rhs.", operator="<="),
    _binary("gt", "compare", "fib", "lhs > rhs.", operator=">"),
    _binary("ge", "compare", "fib", "lhs >= rhs.", operator=">="),
    _binary("logical_and", "logical", "b", "Whether both are true.", operator="&&"),
    _binary("logical_or", "logical", "b", "Whether either is true.", operator="||"),
    # --- bits ---
    _binary(
        "bitwise_and",
        "default",
        "i",
        "Bits set in both.",
        operator="&",
        refusal=_BITS,
        instead=(("b", "logical_and"),),
    ),
    _binary(
        "bitwise_or",
        "default",
        "i",
        "Bits set in either.",
        operator="|",
        refusal=_BITS,
        instead=(("b", "logical_or"),),
    ),
    _binary(
        "bitwise_xor",
        "default",
        "i",
        "Bits set in exactly one.",
        operator="^",
        refusal=_BITS,
        instead=(("b", "ne"),),
    ),
    _binary(
        "bitwise_left_shift",
        "default",
        "i",
        "lhs << rhs, for 0 <= rhs < bit width.",
        ("any", "shift"),
        operator="<<",
        refusal=_INT,
    ),
    _binary(
        "bitwise_right_shift",
        "default",
        "i",
        "lhs >> rhs with the sign copied in, for 0 <= rhs < bit width.",
        ("any", "shift"),
        operator=">>",
        refusal=_INT,
    ),
    _binary("gcd", "default", "i", "Greatest common divisor, not negative.", refusal=_INT),
    _binary("complex", "complex", "f", "lhs + rhs * 1j.", printed="std::complex"),
    # --- ternary ---
    PointwiseOp(
        "where",
        "select",
        ("cond", "x", "y"),
        "fibc",
        "x where cond holds, else y.",
        ("any", "any", "any"),
        cuda="{0} ? {1} : {2}",
    ),
    PointwiseOp(
        "lerp",
        "default",
        ("start", "end", "weight"),
        "f",
        "start + weight * (end - start); from weight 0.5 on end - (end - start) * (1 - weight).",
        ("small", "small", "weight"),
    ),
    PointwiseOp(
        "clamp",
        "bounded",
        ("x", "min", "max"),
        "fi",
        "minimum(maximum(x, min), max); NaN stays.",
        ("any", "small", "small"),
    ),
    PointwiseOp(
        "threshold",
        "bounded",
        ("x", "threshold", "value"),
        "fi",
        "value where x <= threshold, else x.",
        ("any", "small", "small"),
    ),
)

ROWS: dict[str, PointwiseOp] = {row.name: row for row in _ROWS}

_PHILOX_ARGS = ("seed", "offset", "index")
_PHILOX_DOMAINS: tuple[Domain, ...] = ("any", "index", "index")
# Rows that no function of `fd.ops` defines: lowering makes them of the random ops. `philox` says
# what they give, bit for bit.
KERNEL_ROWS: dict[str, PointwiseOp] = {
    name: PointwiseOp(name, "random", _PHILOX_ARGS, "f", doc, _PHILOX_DOMAINS)
    for name, doc in (
        ("philox_uniform", "A random number in [0, 1) for element index."),
        ("philox_normal", "A standard normal random number for element index."),
    )
}


def row_of(name: str) -> PointwiseOp:
    """The row of that name, also one that only lowering uses."""
    return ROWS[name] if name in ROWS else KERNEL_ROWS[name]


_KIND_LETTERS = {"float": "f", "int": "i", "bool": "b", "complex": "c"}


def supports(row: PointwiseOp, operand: DataType) -> bool:
    """Whether `row` can be evaluated in `operand`; half types only where the rule keeps them."""
    if operand not in INFO or not INFO[operand].in_kernels:
        return False
    if row.name == "nextafter" and operand not in (DataType.Float, DataType.Double):
        return False
    if INFO[operand].is_half and row.rule not in (
        "same",
        "component",
        "predicate",
        "select",
        "bounded",
    ):
        return False
    return _KIND_LETTERS[INFO[operand].kind] in row.kinds


def result_dtype(row: PointwiseOp, operand: DataType) -> DataType:
    """Dtype of the result of `row` evaluated in `operand`."""
    if row.rule in ("predicate", "compare", "logical"):
        return DataType.Bool
    if row.rule == "component":
        return COMPONENT.get(operand, operand)
    if row.rule == "complex":
        return COMPLEX_OF[operand]
    return operand
