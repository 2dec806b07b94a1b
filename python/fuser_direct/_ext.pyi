"""The executor of fuser_direct: runs compiled programs on tensors."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

import fuser_direct.enums


def source_stamps(folder: str) -> str:
    """
    Path, size and time of change of every source (.py, .cuh, .so) under a folder, in a fixed order, as one text.
    """

class CudaKernel:
    """
    A kernel of a cubin or PTX image; making one touches no driver, and it is loaded on a device at its first launch there, or by load().
    """

    def __init__(self, image: bytes, name: str) -> None: ...

    @property
    def name(self) -> str: ...

    @property
    def image(self) -> bytes: ...

    @property
    def is_loaded(self) -> bool: ...

    def load(self, device: int) -> None:
        """Load it on a device now, rather than at the first launch there."""

    def attributes(self, device: int) -> dict[str, int]:
        """
        registers and local_bytes of a thread, static_shared_bytes of a block, max_threads_per_block; loads it where needed.
        """

    def blocks_per_sm(self, device: int, threads: int, shared_bytes: int = 0) -> int:
        """Blocks of this size that one SM holds at a time."""

    def launch(self, device: int, grid: Sequence[int], block: Sequence[int], args: Sequence[bytes], shared_bytes: int = 0, stream: int = 0, cluster: int = 1, early: bool = False) -> None:
        """
        Queue one launch. grid, block: (x, y, z); args: the bytes of each argument's value, as struct.pack makes them; stream: a stream's address, 0 for the default one; early: it waits itself for the kernel before it on the stream.

        Raises LaunchError naming the limit that is exceeded; nothing is launched then.
        """

    def __repr__(self) -> str: ...

class DeviceProperties:
    """Properties of one GPU; plain data."""

    @property
    def name(self) -> str: ...

    @property
    def compute_capability(self) -> tuple[int, int]: ...

    @property
    def sm_count(self) -> int: ...

    @property
    def l2_bytes(self) -> int: ...

    @property
    def shared_per_block_optin_bytes(self) -> int: ...

    @property
    def shared_per_sm_bytes(self) -> int: ...

    @property
    def registers_per_sm(self) -> int: ...

    @property
    def max_threads_per_sm(self) -> int: ...

    @property
    def max_threads_per_block(self) -> int: ...

    @property
    def memory_bytes(self) -> int: ...

    @property
    def memory_clock_khz(self) -> int: ...

    @property
    def bus_width_bits(self) -> int: ...

    @property
    def clock_khz(self) -> int: ...

    def __repr__(self) -> str: ...

def cuda_status() -> dict[str, Any]:
    """
    What is known of the CUDA driver; initialises it where there is one, and never raises.

    Keys: available, reason (available, no_library, driver_too_old, init_failed, no_device or forked), detail, driver_version, device_count, library, visible_devices.
    """

def driver_version() -> str:
    """
    CUDA version that the driver serves, such as '13.0'; raises CudaUnavailableError.
    """

def initialized_driver_version() -> str | None:
    """
    As driver_version(), but None unless this process uses the driver already; opens nothing.
    """

def device_properties(id: int) -> DeviceProperties:
    """Properties of a device; makes no context. Raises CudaUnavailableError."""

def nvrtc_compile(source: str, name: str, options: Sequence[str], library_path: str) -> tuple[bytes, str]:
    """
    Build CUDA C++ text; returns the cubin (target sm_XX) or PTX (compute_XX), and the log. Needs no driver. Raises CompileError or UnsupportedError.
    """

def nvrtc_version(library_path: str) -> tuple[int, int]: ...

def nvrtc_targets(library_path: str) -> list[int]:
    """
    Numbers of the targets that this NVRTC builds for, such as 90 of sm_90a, ascending.
    """

class CpuKernel:
    """
    Machine code `void k(const int64_t* args, int64_t begin, int64_t end, void* scratch)` at an address; `owner` keeps it alive.
    """

    def __init__(self, address: int, owner: object | None) -> None: ...

    @staticmethod
    def from_object(object: bytes, name: str) -> CpuKernel:
        """
        Link an object file into this process; its function `name` is the kernel. Raises CompileError if it is damaged or for another processor.
        """

    @property
    def address(self) -> int: ...

class CpuBlock:
    """Memory of the pool, under a NumPy array."""

    @property
    def __array_interface__(self, /) -> dict[str, Any]: ...

def cpu_pool_bytes() -> int:
    """Bytes of large CPU outputs that wait to be used again."""

def cpu_pool_limit() -> int:
    """Most bytes that may wait."""

def set_cpu_pool_limit(limit_bytes: int) -> None:
    """Set it; 0 switches the reuse of memory off."""

def release_cpu_pool() -> None:
    """Give the memory that waits back to the system."""

def link_object(object: bytes, name: str, address: int) -> bytes:
    """
    Bytes of an object file linked as if for a run at `address`; external functions get addresses 16, 32, 48, ... in the order of their use. For tests.
    """

def cpu_threads() -> int:
    """Threads that a CPU run of the calling thread may use."""

def set_cpu_threads(count: int) -> None:
    """
    Fix the number of threads for CPU runs; 0 goes back to FUSER_DIRECT_NUM_THREADS, else PyTorch's setting, else the processors at hand.
    """

def cpu_backend() -> str:
    """
    Path of the OpenMP runtime whose threads run CPU kernels, or 'own pool'.
    """

class DlpackOutput:
    """An output of a call, for a library's from_dlpack."""

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...

class StreamProbe:
    """Notes the stream that from_dlpack works on."""

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...

class Program:
    """
    Steps that run one kind of call; buffers 0..num_inputs-1 are the inputs. It can't be changed once an executor has it.
    """

    def __init__(self, device_type: int, device_id: int, num_inputs: int) -> None: ...

    @property
    def device_type(self) -> int: ...

    @property
    def device_id(self) -> int: ...

    @property
    def num_inputs(self) -> int: ...

    @property
    def num_steps(self) -> int: ...

    @property
    def info(self, /) -> Any:
        """An object of the compiler's that stays with the program."""

    @info.setter
    def info(self, info: Any, /) -> None: ...

    def add_buffer(self, dlpack_code: int, bits: int, sizes: Sequence[int], strides: Sequence[int]) -> int:
        """
        Add an output or an intermediate; returns its buffer number. Strides in elements, in any order, 0 for an expanded dim.
        """

    def launch_cuda(self, kernel: CudaKernel, grid: Sequence[int], block: Sequence[int], shared_bytes: int, args: Iterable[tuple[Any, ...]], cluster: int = 1, early: bool = False) -> None:
        """
        Launch a kernel; a grid with a zero extent launches nothing. cluster: blocks along x that form a thread block cluster. early: it may begin while the kernel before it still runs, for which it waits itself.
        """

    def launch_cpu(self, kernel: CpuKernel, items: int, grain: int, scratch_bytes: int, args: Iterable[tuple[Any, ...]]) -> None:
        """
        Run work items 0..items-1; grain: least items worth a thread of their own; scratch_bytes: 64-byte aligned memory for each thread.
        """

    def copy(self, dst: int, src: int) -> None:
        """Copy between CPU buffers of equal sizes and any strides."""

    def call(self, function: Callable[..., tuple[Any, ...]], ins: Sequence[int], outs: Sequence[int]) -> None:
        """
        Call function(*tensors) -> tuple of tensors that are laid out as the buffers `outs`. It must not refer to the executor that runs the program.
        """

    def add_output(self, buffer: int) -> None:
        """
        Return a buffer; an input is returned as the very object that was passed.
        """

    def add_view(self, base: int, sizes: Sequence[int], strides: Sequence[int], offset: int) -> None:
        """
        Return a tensor that shares the memory of buffer `base`; offset in elements.
        """

    def writes_input(self, input: int) -> None:
        """
        Say that an input is updated in place: calls refuse read-only and overlapping memory.
        """

class ArgInfo:
    """What a compiler is told of one argument of a call."""

    @property
    def is_tensor(self) -> bool: ...

    @property
    def dtype(self, /) -> tuple[int, int]:
        """DLPack type code and bits."""

    @property
    def device_type(self) -> int:
        """1 CPU, 2 CUDA; others as in DLPack."""

    @property
    def device_id(self) -> int: ...

    @property
    def shape(self, /) -> tuple[int, ...]: ...

    @property
    def strides(self, /) -> tuple[int, ...]:
        """
        In elements. Where one moves nothing (a dim of size 1, an empty tensor) it is size times stride of the next dim, whatever the tensor says.
        """

    @property
    def alignment(self) -> int:
        """
        Bytes: on a GPU the largest power of two up to 64 that divides the address; on a CPU the alignment of an element, whatever the address.
        """

    @property
    def is_read_only(self) -> bool: ...

    @property
    def kind(self) -> str:
        """bool, int, float or complex; empty for what is no scalar."""

    @property
    def value(self, /) -> bool | int | float | complex: ...

    @property
    def type_name(self) -> str:
        """Name of the argument's Python type."""

    def __repr__(self) -> str: ...

def inputs_being_compiled() -> list[Any]:
    """
    The arguments of the call that this thread is compiling a program for; [] outside of compiling.
    """

class ExecutorCache:
    """
    Runs the programs that `compiler(args, device, (enable_options, disable_options))` makes, one for each kind of call.
    """

    def __init__(self, compiler: Callable[[list[ArgInfo], int | None, Any], Program], shape_scalars: Sequence[int]) -> None: ...

    def execute(self, inputs: Iterable[Any], *, device: int | None = None, _enable_options: Sequence[str] = [], _disable_options: Sequence[str] = []) -> list[Any]:
        """
        Run the fusion on tensors and scalars; list and tuple elements are flattened.
        """

    def lookup(self, inputs: Iterable[Any], device: int | None = None) -> Program | None:
        """The program for such inputs, or None; compiles nothing."""

    @property
    def most_recent(self, /) -> Program | None:
        """The program that ran last."""

    def time_lookup(self, inputs: Sequence[Any], rounds: int) -> tuple[float, float]:
        """
        Mean nanoseconds of reading `inputs`, and of making and finding their key, for benchmarks.
        """

    def counters(self) -> dict[str, int]:
        """calls, hits and misses so far."""

class DefinitionCall:
    """Calls an executor directly, or `general` if given options."""

    def __init__(self, cache: ExecutorCache, general: Callable[..., list[Any]]) -> None: ...

    @property
    def general(self) -> Callable[..., list[Any]]:
        """What calls with options go to."""

    @property
    def function(self) -> Callable[..., list[Any]]:
        """The call itself: a builtin function of inputs and options."""

    @staticmethod
    def send_to_general(is_on: bool) -> None:
        """Whether plain calls too go to `general`, from now on."""

class LaunchParams:
    """
    Launch constraints: grid and block extents, and bytes of dynamic shared memory. Plain data; limits are checked at launch.
    """

    @overload
    def __init__(self) -> None: ...

    @overload
    def __init__(self, gdimx: int, gdimy: int, gdimz: int, bdimx: int, bdimy: int, bdimz: int) -> None:
        """-1 leaves an extent unset."""

    @property
    def smem(self) -> int:
        """Bytes of dynamic shared memory."""

    @smem.setter
    def smem(self, arg: int, /) -> None: ...

    @property
    def unset(self, /) -> tuple[str, ...]:
        """Names of the extents left open."""

    def __eq__(self, other: object | None) -> bool: ...

    def __hash__(self) -> int: ...

    def __repr__(self) -> str: ...

    @property
    def gdimx(self) -> int: ...

    @gdimx.setter
    def gdimx(self, arg: int, /) -> None: ...

    @property
    def gdimy(self) -> int: ...

    @gdimy.setter
    def gdimy(self, arg: int, /) -> None: ...

    @property
    def gdimz(self) -> int: ...

    @gdimz.setter
    def gdimz(self, arg: int, /) -> None: ...

    @property
    def bdimx(self) -> int: ...

    @bdimx.setter
    def bdimx(self, arg: int, /) -> None: ...

    @property
    def bdimy(self) -> int: ...

    @bdimy.setter
    def bdimy(self, arg: int, /) -> None: ...

    @property
    def bdimz(self) -> int: ...

    @bdimz.setter
    def bdimz(self, arg: int, /) -> None: ...

class CompileParams:
    """How kernels are to be built; plain data."""

    def __init__(self, *, index_type: fuser_direct.enums.DataType | None = None, maxrregcount: int = 255, enable_magic_zero: bool = True, enable_ptxas_verbose: bool = False, device: Any = None, include_paths: Sequence[str] = []) -> None: ...

    @property
    def index_type(self, /) -> fuser_direct.enums.DataType | None: ...

    @index_type.setter
    def index_type(self, value: fuser_direct.enums.DataType | None, /) -> None: ...

    @property
    def maxrregcount(self) -> int: ...

    @maxrregcount.setter
    def maxrregcount(self, arg: int, /) -> None: ...

    @property
    def enable_magic_zero(self) -> bool: ...

    @enable_magic_zero.setter
    def enable_magic_zero(self, arg: bool, /) -> None: ...

    @property
    def enable_ptxas_verbose(self) -> bool: ...

    @enable_ptxas_verbose.setter
    def enable_ptxas_verbose(self, arg: bool, /) -> None: ...

    @property
    def device(self, /) -> Any: ...

    @device.setter
    def device(self, value: Any, /) -> None: ...

    @property
    def include_paths(self) -> list[str]: ...

    @include_paths.setter
    def include_paths(self, arg: Sequence[str], /) -> None: ...

    def __eq__(self, other: object | None) -> bool: ...

    def __repr__(self) -> str: ...

class KernelExecutor:
    """Compiles and runs one fusion as its caller has scheduled it."""

    def __init__(self, fusion_id: int = 0, concrete_id: int = 0, runtime_id: int = 0, group_id: int = 0) -> None: ...

    def compile(self, fusion: Any, args: Sequence[Any] = (), launch_constraints: LaunchParams | None = None, compile_params: CompileParams | None = None, scheduler_type: fuser_direct.enums.SchedulerType = fuser_direct.enums.SchedulerType.none) -> None:
        """
        Make the fusion ready to run; with args given, build its kernels for such args now.
        """

    def run(self, args: Sequence[Any], launch_constraints: LaunchParams | None = None, compile_params: CompileParams | None = None) -> list[Any]:
        """Run on tensors and scalars; returns the outputs."""

    def is_compiled(self) -> bool: ...

    def is_programmatic_dependent_launch_enabled(self) -> bool:
        """
        Whether a kernel of the call that was compiled or run last begins while the one before it still runs; never before one is built, nor with FUSER_DIRECT_EARLY_LAUNCH=0.
        """
