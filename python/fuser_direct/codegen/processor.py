"""The processors that LLVM IR is made for."""

from __future__ import annotations

from fuser_direct.records import dataclass


@dataclass(frozen=True, slots=True)
class CpuTarget:
    """A processor that text is generated for: LLVM's triple, CPU name and feature string
    (`+avx2,-sse4a,...`).

    vector_bits: width of the vector registers to use (128, 256 or 512).
    """

    triple: str
    cpu: str
    features: str
    vector_bits: int

    def has(self, feature: str) -> bool:
        """Whether the feature string turns on `feature` (LLVM's name of it, such as `avx512bw`)."""
        return f"+{feature}" in self.features.split(",")

    @property
    def is_x86(self) -> bool:
        return self.triple.startswith(("x86_64", "i686", "i386"))

    @property
    def has_fma(self) -> bool:
        """Whether a fused multiply-add is one instruction (else LLVM calls libm for each lane)."""
        return self.has("fma") or not self.is_x86

    @property
    def has_rounding(self) -> bool:
        """Whether floor, ceil, trunc and round-half-even are instructions."""
        return self.has("sse4.1") or not self.is_x86

    @property
    def has_half(self) -> bool:
        """Whether half <-> float conversion is an instruction."""
        return self.has("f16c") or not self.is_x86

    @property
    def has_masks(self) -> bool:
        """Whether masked loads and stores of every element size are instructions."""
        return self.vector_bits == 512 and self.has("avx512bw") and self.has("avx512vl")

    @property
    def has_float_fixes(self) -> bool:
        """Whether AVX-512's instructions that mend special floats and order signed zeros are here
        (VFIXUPIMMPS, VRANGEPS).
        """
        return self.has_masks and self.has("avx512f") and self.has("avx512dq")
