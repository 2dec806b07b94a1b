// Python's view of a program: what the compiler fills in.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <string>

#include "binding/bind.h"
#include "binding/exchange.h"
#include "binding/framework.h"
#include "binding/python_owner.h"
#include "core/error.h"
#include "executor/program.h"

namespace nb = nanobind;

namespace fuser_direct {

namespace {

// One of ("pointer", buffer, offset), ("f32", value) and the like, ("scalar" or "item", input,
// type).
KernelArg parse_arg(nb::handle tuple) {
  if (!PyTuple_Check(tuple.ptr()) || PyTuple_Size(tuple.ptr()) < 2) {
    throw UsageError("a kernel argument must be a tuple such as ('pointer', buffer, offset), got " +
                     std::string(nb::repr(tuple).c_str()));
  }
  const std::string kind = nb::cast<std::string>(tuple[0]);
  KernelArg arg;
  if (kind == "pointer") {
    arg.source = KernelArg::Source::kPointer;
    arg.index = nb::cast<int64_t>(tuple[1]);
    arg.offset_elems = nb::cast<int64_t>(tuple[2]);
  } else if (kind == "scalar" || kind == "item") {
    arg.source = kind == "item" ? KernelArg::Source::kItem : KernelArg::Source::kScalar;
    arg.index = nb::cast<int64_t>(tuple[1]);
    arg.type = parse_scalar_type(nb::cast<std::string>(tuple[2]));
  } else {
    arg.type = parse_scalar_type(kind);
    const nb::object value = tuple[1];
    const auto scalar = read_scalar(value.ptr(), "a kernel argument");
    if (!scalar) {
      throw UsageError("a kernel argument's value must be a Python number, got " +
                       std::string(nb::repr(value).c_str()));
    }
    arg.constant = pack_scalar(*scalar, arg.type);
  }
  return arg;
}

KernelArgs parse_args(nb::handle tuples) {
  std::vector<KernelArg> args;
  for (nb::handle tuple : tuples) {
    try {
      args.push_back(parse_arg(tuple));
    } catch (const nb::cast_error&) {
      throw UsageError("a kernel argument has a member of the wrong type: " +
                       std::string(nb::repr(tuple).c_str()));
    }
  }
  return KernelArgs(args);
}

cuda::Dim3 to_dim3(const std::array<int64_t, 3>& dims, const char* what) {
  for (int64_t dim : dims) {
    if (dim < 0 || dim > 0x7fffffff) {
      throw LaunchError(std::string("Program.launch_cuda: ") + what + " " +
                        dims_text(dims.data(), 3) + " has an extent outside 0..2^31-1");
    }
  }
  return {static_cast<unsigned>(dims[0]), static_cast<unsigned>(dims[1]),
          static_cast<unsigned>(dims[2])};
}

// A function of Python objects, such as an op's reference.
class PythonCall final : public PythonFunction {
 public:
  explicit PythonCall(nb::object function) : function_(own(std::move(function))) {}

  void call(const std::vector<void*>& inputs, const std::vector<const BufferSpec*>& specs,
            dl::Device device, Slot* outputs) const override {
    const auto count = static_cast<Py_ssize_t>(inputs.size());
    const nb::object args = nb::steal(PyTuple_New(count));
    if (!args.is_valid()) nb::raise_python_error();
    for (Py_ssize_t i = 0; i < count; ++i) {
      auto* input = static_cast<PyObject*>(inputs[static_cast<size_t>(i)]);
      Py_INCREF(input);
      PyTuple_SetItem(args.ptr(), i, input);  // steals input
    }
    const nb::object result =
        nb::steal(PyObject_Call(static_cast<PyObject*>(function_.get()), args.ptr(), nullptr));
    if (!result.is_valid()) nb::raise_python_error();
    take(result, specs, device, outputs);
  }

 private:
  static void take(const nb::object& result, const std::vector<const BufferSpec*>& specs,
                   dl::Device device, Slot* outputs) {
    ArgumentList list;
    if (!PyTuple_Check(result.ptr())) throw UsageError("Program.call: return a tuple of tensors");
    list.read(result.ptr());
    const std::vector<Argument>& made = list.arguments();
    if (made.size() != specs.size()) {
      throw UsageError("Program.call: the function returned " + std::to_string(made.size()) +
                       " tensors for " + std::to_string(specs.size()) + " outputs");
    }
    for (size_t i = 0; i < made.size(); ++i) check(made[i], *specs[i], device, i);
    for (size_t i = 0; i < made.size(); ++i) {
      auto* object = static_cast<PyObject*>(made[i].object);
      Py_INCREF(object);
      outputs[i] = Slot{made[i].tensor.data, nullptr, object};
    }
  }

  static void check(const Argument& made, const BufferSpec& spec, dl::Device device, size_t i) {
    const std::string who = "Program.call: output " + std::to_string(i) + " of the function ";
    if (made.kind != Argument::Kind::kTensor) throw UsageError(who + "is no tensor");
    const TensorArg& tensor = made.tensor;
    const auto ndim = static_cast<size_t>(tensor.ndim);
    bool fits = tensor.dtype == spec.dtype && tensor.device == device && ndim == spec.sizes.size();
    for (size_t d = 0; fits && d < ndim; ++d) {
      fits = tensor.sizes[d] == spec.sizes[d];
      const bool moves = spec.numel > 0 && tensor.sizes[d] != 1;
      if (fits && moves) fits = tensor.strides[d] == spec.strides[d];
    }
    if (fits) return;
    throw UsageError(who + "has sizes " + dims_text(tensor.sizes, tensor.ndim) + " and strides " +
                     dims_text(tensor.strides, tensor.ndim) +
                     "; its dtype, device and layout must "
                     "be those of its buffer, of sizes " +
                     dims_text(spec.sizes.data(), static_cast<int32_t>(spec.sizes.size())) +
                     " and strides " +
                     dims_text(spec.strides.data(), static_cast<int32_t>(spec.strides.size())));
  }

  std::shared_ptr<void> function_;
};

void make_program(Program* self, int device_type, int device_id, int64_t num_inputs) {
  if (device_type != 1 && device_type != 2) {
    throw UsageError("Program: device_type must be 1 (CPU) or 2 (CUDA), got " +
                     std::to_string(device_type));
  }
  new (self) Program({static_cast<dl::DeviceType>(device_type), device_id}, num_inputs);
}

int64_t add_buffer(Program& self, int code, int bits, std::vector<int64_t> sizes,
                   std::vector<int64_t> strides) {
  // Elements of less than a byte come in whole bytes, as frameworks count them.
  const auto lanes = static_cast<uint16_t>(bits > 0 && bits < 8 ? 8 / bits : 1);
  const dl::DataType dtype{static_cast<dl::TypeCode>(code), static_cast<uint8_t>(bits), lanes};
  return self.add_buffer(dtype, std::move(sizes), std::move(strides));
}

void launch_cuda(Program& self, std::shared_ptr<cuda::Kernel> kernel,
                 const std::array<int64_t, 3>& grid, const std::array<int64_t, 3>& block,
                 int64_t shared_bytes, nb::handle args, unsigned cluster, bool early) {
  if (shared_bytes < 0 || shared_bytes > 0x7fffffff) {
    throw LaunchError("Program.launch_cuda: " + std::to_string(shared_bytes) +
                      " bytes of shared memory are outside 0..2^31-1");
  }
  auto launch = std::make_unique<cuda::Launch>(*kernel, self.device().id, to_dim3(grid, "grid"),
                                               to_dim3(block, "block"),
                                               static_cast<unsigned>(shared_bytes), cluster, early);
  self.add_step(CudaStep{std::move(kernel), std::move(launch), parse_args(args)});
}

void launch_cpu(Program& self, std::shared_ptr<CpuKernel> kernel, int64_t items, int64_t grain,
                int64_t scratch_bytes, nb::handle args) {
  if (items < 0 || grain < 1 || scratch_bytes < 0) {
    throw UsageError(
        "Program.launch_cpu: items and scratch_bytes must not be negative and grain "
        "must be at least 1");
  }
  const cpu::Work work{items, grain, static_cast<size_t>(scratch_bytes)};
  self.add_step(CpuStep{std::move(kernel), work, parse_args(args)});
}

}  // namespace

void bind_program(nb::module_& m) {
  nb::class_<Program>(m, "Program",
                      "Steps that run one kind of call; buffers 0..num_inputs-1 are the inputs. "
                      "It can't be changed once an executor has it.")
      .def("__init__", &make_program, nb::arg("device_type"), nb::arg("device_id"),
           nb::arg("num_inputs"),
           nb::sig("def __init__(self, device_type: int, device_id: int, num_inputs: int) -> None"))
      .def_prop_ro("device_type",
                   [](const Program& self) { return static_cast<int>(self.device().type); })
      .def_prop_ro("device_id", [](const Program& self) { return self.device().id; })
      .def_prop_ro("num_inputs", &Program::num_inputs)
      .def_prop_ro("num_steps", [](const Program& self) { return self.steps().size(); })
      .def_prop_rw(
          "info",
          [](const Program& self) {
            auto* info = static_cast<PyObject*>(self.info().get());
            return info == nullptr ? nb::object(nb::none()) : nb::borrow(info);
          },
          [](Program& self, nb::object info) { self.set_info(own(std::move(info))); },
          nb::arg("info").none(), nb::for_getter(nb::sig("def info(self, /) -> typing.Any")),
          nb::for_setter(nb::sig("def info(self, info: typing.Any, /) -> None")),
          "An object of the compiler's that stays with the program.")
      .def("add_buffer", &add_buffer, nb::arg("dlpack_code"), nb::arg("bits"), nb::arg("sizes"),
           nb::arg("strides"),
           "Add an output or an intermediate; returns its buffer number. Strides in elements, in "
           "any order, 0 for an expanded dim.")
      .def("launch_cuda", &launch_cuda, nb::arg("kernel"), nb::arg("grid"), nb::arg("block"),
           nb::arg("shared_bytes"), nb::arg("args"), nb::arg("cluster") = 1,
           nb::arg("early") = false,
           nb::sig("def launch_cuda(self, kernel: CudaKernel, grid: "
                   "collections.abc.Sequence[int], block: collections.abc.Sequence[int], "
                   "shared_bytes: int, args: collections.abc.Iterable[tuple[typing.Any, ...]], "
                   "cluster: int = 1, early: bool = False) -> None"),
           "Launch a kernel; a grid with a zero extent launches nothing. cluster: blocks along x "
           "that form a thread block cluster. early: it may begin while the kernel before it still "
           "runs, for which it waits itself.")
      .def("launch_cpu", &launch_cpu, nb::arg("kernel"), nb::arg("items"), nb::arg("grain"),
           nb::arg("scratch_bytes"), nb::arg("args"),
           nb::sig("def launch_cpu(self, kernel: CpuKernel, items: int, grain: int, scratch_bytes: "
                   "int, args: collections.abc.Iterable[tuple[typing.Any, ...]]) -> None"),
           "Run work items 0..items-1; grain: least items worth a thread of their own; "
           "scratch_bytes: 64-byte aligned memory for each thread.")
      .def(
          "copy",
          [](Program& self, int64_t dst, int64_t src) { self.add_step(CopyStep{dst, src}); },
          nb::arg("dst"), nb::arg("src"),
          "Copy between CPU buffers of equal sizes and any strides.")
      .def(
          "call",
          [](Program& self, nb::object function, std::vector<int64_t> ins,
             std::vector<int64_t> outs) {
            self.add_step(PythonStep{std::make_shared<PythonCall>(std::move(function)),
                                     std::move(ins), std::move(outs)});
          },
          nb::arg("function"), nb::arg("ins"), nb::arg("outs"),
          nb::sig("def call(self, function: collections.abc.Callable[..., tuple[typing.Any, "
                  "...]], ins: collections.abc.Sequence[int], outs: "
                  "collections.abc.Sequence[int]) -> None"),
          "Call function(*tensors) -> tuple of tensors that are laid out as the buffers `outs`. It "
          "must not refer to the executor that runs the program.")
      .def("add_output", &Program::add_output, nb::arg("buffer"),
           "Return a buffer; an input is returned as the very object that was passed.")
      .def(
          "add_view",
          [](Program& self, int64_t base, std::vector<int64_t> sizes, std::vector<int64_t> strides,
             int64_t offset) {
            self.add_view({base, std::move(sizes), std::move(strides), offset});
          },
          nb::arg("base"), nb::arg("sizes"), nb::arg("strides"), nb::arg("offset"),
          "Return a tensor that shares the memory of buffer `base`; offset in elements.")
      .def("writes_input", &Program::add_written_input, nb::arg("input"),
           "Say that an input is updated in place: calls refuse read-only and overlapping memory.");
}

}  // namespace fuser_direct
