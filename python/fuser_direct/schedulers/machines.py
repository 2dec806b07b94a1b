"""The described machines that schedulers work for; a module that every process imports."""

from __future__ import annotations

from fuser_direct.records import dataclass


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """The facts of a GPU that heuristics use; `arch` is the compile target, such as "sm_90a"."""

    arch: str
    sm_count: int
    max_threads_per_block: int = 1024
    max_threads_per_sm: int = 2048
    registers_per_sm: int = 65536
    l2_bytes: int = 40 << 20
    # What one block may have; every GPU from sm_80 on allows this much when asked.
    shared_per_block_bytes: int = 99 << 10

    @property
    def has_clusters(self) -> bool:
        """Whether blocks of a cluster can reach each other's shared memory: sm_90 and later."""
        return int("".join(c for c in self.arch if c.isdigit()) or 0) >= 90


@dataclass(frozen=True, slots=True)
class CpuDevice:
    """The facts of a CPU that heuristics use. `threads` never changes a result, only how work is
    dealt out."""

    threads: int
    vector_bits: int
