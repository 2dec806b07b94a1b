"""Other packages' implementations of rows: Liger, QuACK and nvFuser, where they are installed.

Each gives what the row's `eager` gives, in that order. Packages are imported when asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib import metadata
from typing import Any

import torch

import fuser_direct
from benchmarks.harness import Call, Row, as_list, reason
from benchmarks.rows_norm import GROUPS
from benchmarks.workload import EPS

Form = Callable[..., Any]
"""The outputs from a row's inputs."""


def _liger() -> dict[str, Form]:
    """Liger's kernels by workload, by its version 0.8.5. Those that write over their inputs (SwiGLU
    backward, rope, cross entropy with gradient) are left out: the other contenders read the same.
    """
    ops = importlib.import_module("liger_kernel.ops")

    def layernorm(x: Any, weight: Any, bias: Any) -> Any:
        module = importlib.import_module("liger_kernel.ops.layer_norm")
        y, _, average, rstd, *_ = module.layer_norm_forward(x, weight, bias, EPS)
        return y, average, rstd

    def layernorm_backward(grad: Any, x: Any, average: Any, rstd: Any, weight: Any) -> Any:
        module = importlib.import_module("liger_kernel.ops.layer_norm")
        return module.layer_norm_backward(
            grad, x, weight, weight, average.flatten(), rstd.flatten()
        )

    def rmsnorm_backward(grad: Any, x: Any, rstd: Any, weight: Any) -> Any:
        module = importlib.import_module("liger_kernel.ops.rms_norm")
        casting = module._str_to_casting_mode["llama"]
        settings = module.calculate_settings(x.shape[-1])
        return module.rms_norm_backward(
            grad, x, weight, rstd.flatten(), 0.0, casting, *settings, False, None
        )

    def softmax_backward(grad: Any, y: Any) -> Any:
        module = importlib.import_module("liger_kernel.ops.softmax")
        block, warps = module.calculate_settings(y.shape[-1])
        return module._softmax_backward(grad, y, block, warps, y.shape[-1] > block)

    def group_norm(x: Any, weight: Any, bias: Any) -> Any:
        return ops.LigerGroupNormFunction.apply(x, weight, bias, x.shape[1], GROUPS, EPS)

    def cross_entropy(x: Any, target: Any) -> Any:
        loss = ops.LigerCrossEntropyFunction.apply(
            x, target, None, -100, 0.0, 0.0, "none", None, False
        )
        return loss[0] if isinstance(loss, tuple) else loss

    return {
        "rmsnorm": lambda x, w: ops.LigerRMSNormFunction.apply(x, w, EPS, 0.0, "llama", False),
        "add_rmsnorm": lambda x, r, w: ops.LigerFusedAddRMSNormFunction.apply(
            x, r, w, EPS, 0.0, "llama", False
        ),
        "layernorm+stats": layernorm,
        "layernorm_backward": layernorm_backward,
        "rmsnorm_backward": rmsnorm_backward,
        "softmax_backward": softmax_backward,
        "softmax": ops.LigerSoftmaxFunction.apply,
        "swiglu": ops.LigerSiLUMulFunction.apply,
        "group_norm": group_norm,
        "cross_entropy": cross_entropy,
    }


def _quack() -> dict[str, Form]:
    """QuACK's kernels by workload, by its version 0.6.5."""
    norm = importlib.import_module("quack.rmsnorm")
    softmax = importlib.import_module("quack.softmax")
    loss = importlib.import_module("quack.cross_entropy")

    def cross_entropy_both(x: Any, target: Any) -> Any:
        # Its gradient is of the sum of losses; a mean's is that over the number of rows, which
        # costs QuACK a pass if done after the kernel: it is given the scale in `dloss`.
        values, lse = loss.cross_entropy_fwd(x, target, return_lse=True)
        scale = torch.full_like(values, 1.0 / x.shape[0])
        return values, loss.cross_entropy_bwd(x, target, scale, lse)

    return {
        "rmsnorm": lambda x, w: norm.rmsnorm_fwd(x, w, eps=EPS)[0],
        "add_rmsnorm": lambda x, r, w: norm.rmsnorm_fwd(x, w, residual=r, eps=EPS)[:2],
        "rmsnorm_backward": lambda grad, x, rstd, w: norm.rmsnorm_bwd(x, w, grad, rstd.flatten())[
            :2
        ],
        "softmax": softmax.softmax_fwd,
        "softmax_backward": softmax.softmax_bwd,
        "cross_entropy": loss.cross_entropy_fwd,
        "cross_entropy_forward_backward": cross_entropy_both,
    }


class Peers:
    """The installed ones among the peers; `notes` say which, or why not."""

    def __init__(self, device: str) -> None:
        self.notes: list[str] = []
        self._forms: dict[str, dict[str, Form]] = {}
        self._nvfuser: Any = None
        if device != "cuda":
            self.notes.append("Liger, QuACK and nvFuser have no CPU kernels")
            return
        for name, distribution, load in (
            ("liger", "liger-kernel", _liger),
            ("quack", "quack-kernels", _quack),
        ):
            self._load(name, distribution, load)
        self._load_nvfuser()

    def _load(self, name: str, distribution: str, load: Callable[[], dict[str, Form]]) -> None:
        try:
            self._forms[name] = load()
        except Exception as problem:
            self.notes.append(_absent(name, problem))
            return
        self.notes.append(f"{name} {metadata.version(distribution)}")

    def _load_nvfuser(self) -> None:
        try:
            module = importlib.import_module("nvfuser_direct")
        except Exception as problem:
            self.notes.append(_absent("nvfuser", problem))
            return
        if module.FusionDefinition is fuser_direct.FusionDefinition:
            self.notes.append("nvfuser: its name is taken by fuser_direct in this process")
            return
        self._nvfuser = module
        self.notes.append(f"nvfuser {module.version()}")

    @property
    def names(self) -> list[str]:
        """Of those that are installed."""
        return [*self._forms, *(["nvfuser"] if self._nvfuser else [])]

    def calls(self, row: Row, inputs: list[torch.Tensor]) -> tuple[dict[str, Call], dict[str, str]]:
        """Implementations of `row` by name, and failures by name."""
        found: dict[str, Call] = {}
        failed: dict[str, str] = {}
        for name, forms in self._forms.items():
            form = forms.get(row.workload)
            if form:
                found[name] = _bound(form, inputs)
        if self._nvfuser:
            try:
                found["nvfuser"] = self._nvfuser_call(row, inputs)
            except Exception as problem:
                failed["nvfuser"] = reason(problem)
        return found, failed

    def _nvfuser_call(self, row: Row, inputs: list[torch.Tensor]) -> Call:
        with self._nvfuser.FusionDefinition() as fd:
            for output in as_list(row.define(fd, *(fd.from_pytorch(x) for x in inputs))):
                fd.add_output(output)
        return lambda: as_list(fd.execute(inputs))


def _absent(name: str, problem: Exception) -> str:
    if isinstance(problem, ModuleNotFoundError):
        return f"{name}: not installed"
    return f"{name}: {reason(problem)}"


def _bound(form: Form, inputs: list[torch.Tensor]) -> Call:
    return lambda: as_list(form(*inputs))
