// Python's view of cpp/cpu: kernels and the threads that run them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <string>
#include <string_view>

#include "binding/bind.h"
#include "binding/python_owner.h"
#include "core/error.h"
#include "cpu/block_pool.h"
#include "cpu/object_loader.h"
#include "cpu/parallel.h"
#include "executor/program.h"

namespace nb = nanobind;

namespace fuser_direct {

namespace {

void make_kernel(CpuKernel* self, uint64_t address, nb::object owner) {
  if (address == 0) throw UsageError("CpuKernel: address must not be 0");
  new (self) CpuKernel{reinterpret_cast<cpu::KernelFunction>(address), own(std::move(owner))};
}

std::string_view bytes_of(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

std::shared_ptr<CpuKernel> load_kernel(const nb::bytes& object, const std::string& name) {
  cpu::LoadedFunction loaded = cpu::load_object(bytes_of(object), name);
  return std::make_shared<CpuKernel>(
      CpuKernel{reinterpret_cast<cpu::KernelFunction>(loaded.address), std::move(loaded.memory)});
}

nb::bytes link_object(const nb::bytes& object, const std::string& name, uint64_t address) {
  const std::string image = cpu::link_image(bytes_of(object), name, address);
  return nb::bytes(image.data(), image.size());
}

void set_threads(int count) {
  if (count < 0) {
    throw UsageError("set_cpu_threads: expected a number of threads, or 0 for the default, got " +
                     std::to_string(count));
  }
  cpu::set_num_threads(count);
}

// How NumPy makes an array over a block and keeps it alive.
nb::dict describe_memory(const cpu::Block& block) {
  nb::dict description;
  description["version"] = 3;
  description["shape"] = nb::make_tuple(block.size());
  description["typestr"] = "|u1";
  description["data"] = nb::make_tuple(reinterpret_cast<uintptr_t>(block.data()), false);
  return description;
}

void bind_pool(nb::module_& m) {
  nb::class_<cpu::Block>(m, "CpuBlock", "Memory of the pool, under a NumPy array.")
      .def_prop_ro("__array_interface__", &describe_memory,
                   nb::sig("def __array_interface__(self, /) -> dict[str, typing.Any]"));
  m.def("cpu_pool_bytes", &cpu::pool_bytes,
        "Bytes of large CPU outputs that wait to be used again.");
  m.def("cpu_pool_limit", &cpu::pool_limit_bytes, "Most bytes that may wait.");
  m.def("set_cpu_pool_limit", &cpu::set_pool_limit_bytes, nb::arg("limit_bytes"),
        "Set it; 0 switches the reuse of memory off.");
  m.def("release_cpu_pool", &cpu::release_pool, "Give the memory that waits back to the system.");
}

}  // namespace

void bind_cpu(nb::module_& m) {
  nb::class_<CpuKernel>(
      m, "CpuKernel",
      "Machine code `void k(const int64_t* args, int64_t begin, int64_t end, void* scratch)` at an "
      "address; `owner` keeps it alive.")
      .def("__init__", &make_kernel, nb::arg("address"), nb::arg("owner").none())
      .def_static(
          "from_object", &load_kernel, nb::arg("object"), nb::arg("name"),
          "Link an object file into this process; its function `name` is the kernel. Raises "
          "CompileError if it is damaged or for another processor.")
      .def_prop_ro("address", [](const CpuKernel& kernel) {
        return reinterpret_cast<uint64_t>(kernel.function);
      });
  bind_pool(m);
  m.def("link_object", &link_object, nb::arg("object"), nb::arg("name"), nb::arg("address"),
        "Bytes of an object file linked as if for a run at `address`; external functions get "
        "addresses 16, 32, 48, ... in the order of their use. For tests.");
  m.def("cpu_threads", &cpu::num_threads, "Threads that a CPU run of the calling thread may use.");
  m.def("set_cpu_threads", &set_threads, nb::arg("count"),
        "Fix the number of threads for CPU runs; 0 goes back to FUSER_DIRECT_NUM_THREADS, else "
        "PyTorch's setting, else the processors at hand.");
  m.def("cpu_backend", &cpu::backend_name,
        "Path of the OpenMP runtime whose threads run CPU kernels, or 'own pool'.");
}

}  // namespace fuser_direct
