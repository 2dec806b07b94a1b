"""`autotune`: kernels compiled inside it try a few schedules on the call's inputs, once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_is_on: ContextVar[bool] = ContextVar("fuser_direct_autotune", default=False)


@contextmanager
def autotune(enabled: bool = True) -> Iterator[None]:
    """Calls inside that compile something time a few schedules of each kernel and keep the fastest.

    The candidates are the scheduler's own choice and its neighbours; the trial runs are on the
    call's own inputs, of which those that are written in place are copied first. The winner is kept
    in this process and in the disk cache, for kernels of the same kind and about the same size on
    the same machine: those are timed no more, but only inside `autotune`. Calls whose program is
    there already are not tuned again. On a GPU it needs PyTorch, whose events measure.

    enabled: False switches it off inside an outer one. As an option of one call:
    `execute(..., _enable_options=["autotune"])`.
    """
    token = _is_on.set(enabled)
    try:
        yield
    finally:
        _is_on.reset(token)


def is_on() -> bool:
    """Whether this thread is inside `autotune`."""
    return _is_on.get()
