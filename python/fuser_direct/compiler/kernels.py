"""Compiled kernels of this process: each (kernel, schedule, target) is built once, whatever
fusion asks for it."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from fuser_direct.enums import SchedulerType
from fuser_direct.records import dataclass

if TYPE_CHECKING:
    from fuser_direct.schedulers.contract import Scheduled


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A kernel that can run. handle: `_ext.CudaKernel` or `_ext.CpuKernel`; source: the
    generated text; shared_bytes: dynamic shared memory that its launches must ask for;
    was_found: it came from the disk cache or an artifact; disk_key: where the disk cache has it,
    empty without one."""

    name: str
    backend: str
    target: str
    source: str
    scheduler: SchedulerType
    handle: Any
    shared_bytes: int = 0
    was_found: bool = False
    disk_key: bytes = b""


Build = Callable[["Scheduled"], CompiledKernel]


class KernelStore:
    """Compiled kernels by key. Threads that ask for a kernel that is being built wait for it; a
    failure is not kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kernels: dict[Hashable, Future[CompiledKernel]] = {}
        # By their disk keys, for programs that were stored whole.
        self._by_disk_key: dict[bytes, CompiledKernel] = {}
        self._compiled = 0
        self._hits = 0
        self._disk_hits = 0
        # A child of fork must not wait for a build that was under way in a thread it doesn't have.
        os.register_at_fork(after_in_child=self._after_fork)

    def get(
        self, scheduled: Sequence[Scheduled], target: Hashable, build: Build
    ) -> list[CompiledKernel]:
        """Kernels for all of `scheduled`; those that are missing are built at once, in parallel
        where that helps."""
        mine: list[tuple[Hashable, Scheduled, Future[CompiledKernel]]] = []
        futures = []
        with self._lock:
            for item in scheduled:
                key = _key(item, target)
                future = self._kernels.get(key)
                if future is None:
                    future = self._kernels[key] = Future()
                    mine.append((key, item, future))
                else:
                    self._hits += 1
                futures.append(future)
        self._build_all(mine, build)
        return [future.result() for future in futures]

    def _build_all(
        self, mine: list[tuple[Hashable, Scheduled, Future[CompiledKernel]]], build: Build
    ) -> None:
        if len(mine) > 1:
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(min(len(mine), os.cpu_count() or 1)) as pool:
                list(pool.map(functools.partial(self._build_one, build), mine))
        else:
            for entry in mine:
                self._build_one(build, entry)

    def _build_one(
        self, build: Build, entry: tuple[Hashable, Scheduled, Future[CompiledKernel]]
    ) -> None:
        key, item, future = entry
        try:
            kernel = build(item)
        except BaseException as error:
            with self._lock:
                del self._kernels[key]
            future.set_exception(error)
        else:
            with self._lock:
                self._disk_hits += kernel.was_found
                self._compiled += not kernel.was_found
                if kernel.disk_key:
                    self._by_disk_key[kernel.disk_key] = kernel
            future.set_result(kernel)

    def stored(
        self, disk_key: bytes, load: Callable[[], CompiledKernel | None]
    ) -> CompiledKernel | None:
        """The kernel with this disk key: of this process, or what `load` finds."""
        with self._lock:
            known = self._by_disk_key.get(disk_key)
            if known is not None:
                self._hits += 1
                return known
        found = load()
        if found is None:
            return None
        with self._lock:
            self._disk_hits += 1
            return self._by_disk_key.setdefault(disk_key, found)

    def counters(self) -> dict[str, int]:
        """kernels_compiled: built so far in this process; cache_hits: requests that found one in
        it; disk_hits: kernels that were loaded from the disk cache or an artifact."""
        with self._lock:
            return {
                "kernels_compiled": self._compiled,
                "cache_hits": self._hits,
                "disk_hits": self._disk_hits,
            }

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._kernels = {key: f for key, f in self._kernels.items() if f.done()}


STORE = KernelStore()


def _key(item: Scheduled, target: Hashable) -> Hashable:
    from fuser_direct.ir.kernel import CONST

    kernel = item.lowered.kernel
    # Constants by their text: -0.0 equals 0.0 and NaN differs from itself, but not for generated
    # code.
    constants = tuple(repr(node.attr) for node in kernel.nodes if node.op == CONST)
    stripped = tuple(
        (node.op, node.args, node.dtype, None if node.op == CONST else node.attr)
        for node in kernel.nodes
    )
    shape = (
        kernel.name,
        kernel.axes,
        kernel.buffers,
        kernel.scalars,
        kernel.prologue,
        kernel.stages,
    )
    return shape, stripped, constants, item.schedule, target
