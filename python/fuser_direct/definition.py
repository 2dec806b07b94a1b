"""FusionDefinition: with it a user defines, executes, prints and validates a fusion."""

from __future__ import annotations

import types
from collections.abc import Iterable, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fuser_direct import ops as _ops
from fuser_direct.define import define_like, define_scalar, define_tensor
from fuser_direct.enums import DataType
from fuser_direct.errors import DefinitionStateError, InputError, UsageError
from fuser_direct.ir.fusion import Fusion, FusionGuard
from fuser_direct.ir.values import TensorView, Val
from fuser_direct.ops.scalar import as_int, refuse_type

if TYPE_CHECKING:
    from fuser_direct._ext import KernelExecutor
    from fuser_direct.executor import FusionExecutorCache

_NOT_DEFINED = "Fusion does not exist! Use `with FusionDefinition() as fd: ...` to define a fusion."
_EMPTY = "Fusion is empty!"
_MAX_DEVICES = 256


class FusionDefinition:
    """A fusion being defined, inside `with FusionDefinition() as fd:`, and executed, after it.

    `fec` (after the first `execute`) is the FusionExecutorCache that owns the fusion; `ke` (after
    the first `manual_execute`) the KernelExecutor. The two ways of executing don't mix.
    """

    ops = _ops
    fec: FusionExecutorCache
    ke: KernelExecutor
    fake_inputs: list[Any]

    def __init__(self) -> None:
        self._fusion: Fusion | None = None
        self._guard: FusionGuard | None = None

    def __enter__(self) -> FusionDefinition:
        for leftover in ("fec", "ke", "fake_inputs"):
            self.__dict__.pop(leftover, None)
        if self._guard is not None:
            self._guard.close()
        self._fusion = Fusion()
        self._guard = FusionGuard(self._fusion)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: Any
    ) -> None:
        if self._guard is not None:
            self._guard.close()
            self._guard = None
        if kind is not None:
            print(f"Exception occurred: {kind.__name__}: {error}")
            import traceback

            print("".join(traceback.format_tb(trace)), end="")

    @property
    def sched(self) -> ModuleType:
        """The module `fuser_direct.schedule`."""
        return import_module("fuser_direct.schedule")

    @property
    def fusion(self) -> Fusion | None:
        """The fusion: the executor cache's once there is one."""
        fec = self.__dict__.get("fec")
        return fec.fusion() if fec is not None else self.__dict__.get("_fusion")

    # --- definition ---

    def define_tensor(self, *args: Any, **kwargs: Any) -> TensorView:
        """Declare the next input, a tensor; `fuser_direct.define_tensor` describes the forms."""
        tv = define_tensor(*args, **kwargs)
        tv.fusion.add_input(tv)
        return tv

    def define_scalar(self, *args: Any, **kwargs: Any) -> Val:
        """Declare the next input, a symbolic scalar; or, with a value, a constant, which is no
        input.
        """
        val = define_scalar(*args, **kwargs)
        if val.is_symbolic():
            val.fusion.add_input(val)
        return val

    def define_vector(self, size: int) -> list[Val]:
        """Declare the next `size` inputs, symbolic Int scalars."""
        count = as_int(size)
        if count is None or count < 0:
            raise refuse_type("define_vector", "size", "an int of 0 or more", size)
        return [self.define_scalar(None, DataType.Int) for _ in range(count)]

    def from_pytorch(self, tensor: Any, static_sizes: bool = False) -> TensorView:
        """Declare the next input like `tensor`, a PyTorch tensor or NumPy array: its layout and
        dtype, not its data.

        Axes of size 1 become broadcasts, axes of stride 0 expanded broadcasts; other sizes stay
        symbolic unless `static_sizes`.
        """
        tv = define_like(tensor, static_sizes)
        tv.fusion.add_input(tv)
        return tv

    def add_output(self, output: TensorView, alias_input: TensorView | None = None) -> None:
        """Return `output` from `execute`, or write it in place into input `alias_input`; see
        `Fusion.add_output`.
        """
        if not isinstance(output, Val):
            raise refuse_type("add_output", "output", "a TensorView", output)
        fusion = self.fusion
        if fusion is None:
            raise DefinitionStateError(_NOT_DEFINED)
        if "fec" in self.__dict__ or "ke" in self.__dict__:
            raise UsageError("add_output: this fusion was executed already; define a new one")
        fusion.add_output(output, alias_input)

    # --- execution ---

    def validate_definition(self) -> tuple[bool, str | None]:
        """(True, None), or False and what is missing before the fusion can be executed."""
        fusion = self.fusion
        if fusion is None:
            return False, _NOT_DEFINED
        if not fusion.outputs():
            return False, _EMPTY
        return True, None

    def _check_definition(self) -> Fusion:
        is_valid, message = self.validate_definition()
        if not is_valid:
            raise DefinitionStateError(message)
        assert self.fusion is not None
        return self.fusion

    def execute(
        self,
        inputs: Iterable[Any],
        *,
        device: Any = None,
        save_repro_inputs: bool = False,
        _enable_options: Sequence[str] = (),
        _disable_options: Sequence[str] = (),
    ) -> list[Any]:
        """Run the fusion on `inputs` and return its outputs, in the framework of the first tensor
        input.

        inputs: tensors (PyTorch, NumPy, CuPy, JAX, DLPack) and Python numbers in the order of
        declaration; a list or tuple among them stands for its elements. device: CUDA device (index,
        "cuda:0" or torch.device) of a fusion without CUDA inputs, "cpu" for the host.
        save_repro_inputs keeps the inputs' descriptions for `last_repro_script`.
        """
        fec = self.__dict__.get("fec")
        if fec is None:
            fec = self._new_executor_cache()
        self._shorten(fec)
        arguments = _flattened(inputs)
        if save_repro_inputs:
            from fuser_direct.repro import without_data

            self.fake_inputs = without_data(arguments)
        outputs: list[Any] = fec.execute(
            arguments,
            device=None if device is None else _device_index(device),
            _enable_options=list(_enable_options or ()),
            _disable_options=list(_disable_options or ()),
        )
        return outputs

    def _shorten(self, fec: Any) -> None:
        """Let later plain calls of `execute` go straight to the executor, without a frame."""
        from fuser_direct._ext import DefinitionCall, ExecutorCache

        if isinstance(fec, ExecutorCache):
            general = types.MethodType(type(self).execute, self)
            self.__dict__["execute"] = DefinitionCall(fec, general).function

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("fec", "ke"):
            self.__dict__.pop("execute", None)
        object.__setattr__(self, name, value)

    def _new_executor_cache(self) -> FusionExecutorCache:
        if "ke" in self.__dict__:
            raise UsageError(
                "KernelExecutor already exists! Use manual_execute() to execute the fusion."
            )
        fusion = self._check_definition()
        from fuser_direct.executor import FusionExecutorCache

        self.fec = FusionExecutorCache(fusion)
        # The cache owns the fusion from here on; programs tell the two states apart by this
        # attribute.
        self.__dict__.pop("_fusion", None)
        return self.fec

    def manual_execute(self, inputs: Iterable[Any], heuristic_params: Any = None) -> list[Any]:
        """Run the fusion as one kernel, compiled once, with the launch and compile parameters
        given.
        """
        if "fec" in self.__dict__:
            raise UsageError(
                "FusionExecutorCache already exists! Use execute() to execute the fusion."
            )
        fusion = self._check_definition()
        from fuser_direct._ext import KernelExecutor

        if "ke" not in self.__dict__:
            self.ke = KernelExecutor()
        arguments = _flattened(inputs)
        if heuristic_params is None:
            if not self.ke.is_compiled():
                self.ke.compile(fusion, arguments)
            return list(self.ke.run(arguments))
        launch, compile_ = heuristic_params.lparams, heuristic_params.cparams
        if not self.ke.is_compiled():
            self.ke.compile(fusion, arguments, launch, compile_, heuristic_params.scheduler_type)
        return list(self.ke.run(arguments, launch, compile_))

    def validate(
        self,
        inputs: Iterable[Any],
        reference_outputs: Sequence[Any] | None = None,
        device: Any = None,
        **kwargs: Any,
    ) -> list[Any]:
        """Execute, check the outputs against `reference_outputs` or a reference evaluation, and
        return them.
        """
        arguments = list(inputs)
        outputs = self.execute(arguments, device=device, **kwargs)
        self._validate(self.fusion, outputs, reference_outputs, arguments)
        return outputs

    def manual_validate(
        self, inputs: Iterable[Any], reference_outputs: Sequence[Any] | None = None
    ) -> list[Any]:
        """As `validate`, by `manual_execute`."""
        arguments = list(inputs)
        outputs = self.manual_execute(arguments)
        self._validate(self.fusion, outputs, reference_outputs, arguments)
        return outputs

    def _validate(
        self, fusion: Any, outputs: Sequence[Any], references: Any, inputs: Sequence[Any]
    ) -> None:
        from fuser_direct.validation import validate

        validate(fusion, outputs, references, _flattened(inputs))

    # --- text ---

    def __repr__(self) -> str:
        from fuser_direct.ir.translate import translate_fusion

        fusion = self.fusion
        if fusion is None:
            return "<FusionDefinition without a definition>"
        return translate_fusion(fusion)

    def repro_script_for(self, inputs: Iterable[Any] | None = None) -> str:
        """A script that defines this fusion again and, given inputs, executes it on inputs of the
        same layout.
        """
        from fuser_direct.repro import repro_script

        return repro_script(repr(self), None if inputs is None else _flattened(inputs))

    def last_repro_script(self) -> str:
        """`repro_script_for` the inputs of the last `execute(inputs, save_repro_inputs=True)`."""
        if "fake_inputs" not in self.__dict__:
            raise UsageError(
                "fd.last_repro_script() cannot provide a repro because fd.execute(inputs, "
                "save_repro_inputs=True) "
                "was not executed!"
            )
        return self.repro_script_for(self.fake_inputs)


def _flattened(inputs: Iterable[Any]) -> Sequence[Any]:
    """`inputs` as a sequence, with lists and tuples (vectors) among them taken apart."""
    arguments = inputs if isinstance(inputs, (list, tuple)) else list(inputs)
    for argument in arguments:
        if isinstance(argument, (list, tuple)):
            break
    else:
        return arguments
    return [
        element
        for argument in arguments
        for element in (argument if isinstance(argument, (list, tuple)) else (argument,))
    ]


def _device_index(device: Any) -> int:
    """A CUDA device's index from an int, "cuda:1" or a torch.device; -1 for the CPU."""
    index = as_int(device)
    if index is None:
        kind, _, number = str(device).partition(":")
        if kind == "cpu":
            return -1
        if kind != "cuda" or not (number.isdigit() or not number):
            raise UsageError(
                "execute: device must be None, an index, 'cpu', 'cuda' or 'cuda:<index>', got "
                f"{device!r}"
            )
        index = int(number or 0)
    if not 0 <= index < _MAX_DEVICES:
        raise InputError(f"execute: device index must be 0..{_MAX_DEVICES - 1}, got {index}")
    return index
