// Python's view of cpp/cuda: kernels, NVRTC, and what there is to know of the driver and devices.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <cstdlib>

#include "binding/bind.h"
#include "cuda/device.h"
#include "cuda/driver_api.h"
#include "cuda/launch.h"
#include "cuda/nvrtc.h"

namespace nb = nanobind;

namespace fuser_direct {
namespace {

using Extents = std::array<unsigned, 3>;

const char* reason_name(cuda::Availability availability) {
  switch (availability) {
    case cuda::Availability::kAvailable:
      return "available";
    case cuda::Availability::kNoLibrary:
      return "no_library";
    case cuda::Availability::kDriverTooOld:
      return "driver_too_old";
    case cuda::Availability::kInitFailed:
      return "init_failed";
    case cuda::Availability::kNoDevice:
      return "no_device";
    case cuda::Availability::kForked:
      return "forked";
  }
  return "init_failed";
}

nb::object version_or_none(int version) {
  return version == 0 ? nb::none() : nb::object(nb::str(cuda::version_text(version).c_str()));
}

nb::dict cuda_status() {
  cuda::DriverStatus status;
  {
    const nb::gil_scoped_release release;
    status = cuda::driver_status();
  }
  nb::dict d;
  d["available"] = status.availability == cuda::Availability::kAvailable;
  d["reason"] = reason_name(status.availability);
  d["detail"] = status.detail;
  d["driver_version"] = version_or_none(status.driver_version);
  d["device_count"] = status.device_count;
  d["library"] = status.library.empty() ? nb::none() : nb::object(nb::str(status.library.c_str()));
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  d["visible_devices"] = visible == nullptr ? nb::none() : nb::object(nb::str(visible));
  return d;
}

// args: the raw bytes of each argument's value.
void launch_kernel(const cuda::Kernel& kernel, int device, const Extents& grid,
                   const Extents& block, const std::vector<nb::bytes>& args, unsigned shared_bytes,
                   std::uintptr_t stream, unsigned cluster, bool early) {
  std::vector<void*> params;
  params.reserve(args.size());
  for (const nb::bytes& arg : args) params.push_back(const_cast<char*>(arg.c_str()));
  const auto dim3 = [](const Extents& e) { return cuda::Dim3{e[0], e[1], e[2]}; };
  const nb::gil_scoped_release release;
  const cuda::Launch launch(kernel, device, dim3(grid), dim3(block), shared_bytes, cluster, early);
  launch.queue(params.data(), reinterpret_cast<void*>(stream));
}

nb::dict attributes_dict(const cuda::KernelAttributes& a) {
  nb::dict d;
  d["registers"] = a.registers;
  d["local_bytes"] = a.local_bytes;
  d["static_shared_bytes"] = a.static_shared_bytes;
  d["max_threads_per_block"] = a.max_threads_per_block;
  return d;
}

void bind_kernel(nb::module_& m) {
  nb::class_<cuda::Kernel>(m, "CudaKernel",
                           "A kernel of a cubin or PTX image; making one touches no driver, and it "
                           "is loaded on a device at its first launch there, or by load().")
      .def(
          "__init__",
          [](cuda::Kernel* self, const nb::bytes& image, const std::string& name) {
            new (self) cuda::Kernel(std::string(image.c_str(), image.size()), name);
          },
          nb::arg("image"), nb::arg("name"))
      .def_prop_ro("name", &cuda::Kernel::name)
      .def_prop_ro(
          "image",
          [](const cuda::Kernel& k) { return nb::bytes(k.image().data(), k.image().size()); })
      .def_prop_ro("is_loaded", &cuda::Kernel::is_loaded)
      .def("load", &cuda::Kernel::load, nb::arg("device"), nb::call_guard<nb::gil_scoped_release>(),
           "Load it on a device now, rather than at the first launch there.")
      .def(
          "attributes",
          [](const cuda::Kernel& k, int device) { return attributes_dict(k.attributes(device)); },
          nb::arg("device"), nb::sig("def attributes(self, device: int) -> dict[str, int]"),
          "registers and local_bytes of a thread, static_shared_bytes of a block, "
          "max_threads_per_block; loads it where needed.")
      .def("blocks_per_sm", &cuda::Kernel::blocks_per_sm, nb::arg("device"), nb::arg("threads"),
           nb::arg("shared_bytes") = 0, nb::call_guard<nb::gil_scoped_release>(),
           "Blocks of this size that one SM holds at a time.")
      .def("launch", &launch_kernel, nb::arg("device"), nb::arg("grid"), nb::arg("block"),
           nb::arg("args"), nb::arg("shared_bytes") = 0, nb::arg("stream") = 0,
           nb::arg("cluster") = 1, nb::arg("early") = false,
           "Queue one launch. grid, block: (x, y, z); args: the bytes of each argument's value, as "
           "struct.pack makes them; stream: a stream's address, 0 for the default one; early: it "
           "waits itself for the kernel before it on the stream.\n\n"
           "Raises LaunchError naming the limit that is exceeded; nothing is launched then.")
      .def("__repr__", [](const cuda::Kernel& k) { return "<CudaKernel " + k.name() + ">"; });
}

void bind_device(nb::module_& m) {
  using P = cuda::DeviceProperties;
  nb::class_<P>(m, "DeviceProperties", "Properties of one GPU; plain data.")
      .def_ro("name", &P::name)
      .def_prop_ro("compute_capability",
                   [](const P& p) {
                     return std::make_pair(p.compute_capability_major, p.compute_capability_minor);
                   })
      .def_ro("sm_count", &P::sm_count)
      .def_ro("l2_bytes", &P::l2_bytes)
      .def_ro("shared_per_block_optin_bytes", &P::shared_per_block_optin_bytes)
      .def_ro("shared_per_sm_bytes", &P::shared_per_sm_bytes)
      .def_ro("registers_per_sm", &P::registers_per_sm)
      .def_ro("max_threads_per_sm", &P::max_threads_per_sm)
      .def_ro("max_threads_per_block", &P::max_threads_per_block)
      .def_ro("memory_bytes", &P::memory_bytes)
      .def_ro("memory_clock_khz", &P::memory_clock_khz)
      .def_ro("bus_width_bits", &P::bus_width_bits)
      .def_ro("clock_khz", &P::clock_khz)
      .def("__repr__", [](const P& p) {
        return "<DeviceProperties " + p.name + " (" + p.sm() + ", " + std::to_string(p.sm_count) +
               " SMs)>";
      });
  m.def("cuda_status", &cuda_status, nb::sig("def cuda_status() -> dict[str, typing.Any]"),
        "What is known of the CUDA driver; initialises it where there is one, and never raises.\n\n"
        "Keys: available, reason (available, no_library, driver_too_old, init_failed, no_device or "
        "forked), detail, driver_version, device_count, library, visible_devices.");
  m.def(
      "driver_version", [] { return cuda::version_text(cuda::driver().version); },
      "CUDA version that the driver serves, such as '13.0'; raises CudaUnavailableError.");
  m.def(
      "initialized_driver_version",
      []() -> nb::object {
        const cuda::Driver* driver = cuda::driver_if_ready();
        return version_or_none(driver == nullptr ? 0 : driver->version);
      },
      nb::sig("def initialized_driver_version() -> str | None"),
      "As driver_version(), but None unless this process uses the driver already; opens nothing.");
  m.def("device_properties", &cuda::device_properties, nb::arg("id"), nb::rv_policy::copy,
        nb::call_guard<nb::gil_scoped_release>(),
        "Properties of a device; makes no context. Raises CudaUnavailableError.");
}

void bind_nvrtc(nb::module_& m) {
  m.def(
      "nvrtc_compile",
      [](const std::string& source, const std::string& name,
         const std::vector<std::string>& options, const std::string& library_path) {
        cuda::Compiled compiled;
        {
          const nb::gil_scoped_release release;
          compiled = cuda::Nvrtc::open(library_path).compile(source, name, options);
        }
        return nb::make_tuple(nb::bytes(compiled.image.data(), compiled.image.size()),
                              compiled.log);
      },
      nb::arg("source"), nb::arg("name"), nb::arg("options"), nb::arg("library_path"),
      nb::sig("def nvrtc_compile(source: str, name: str, options: collections.abc.Sequence[str], "
              "library_path: str) -> tuple[bytes, str]"),
      "Build CUDA C++ text; returns the cubin (target sm_XX) or PTX (compute_XX), and the log. "
      "Needs no driver. Raises CompileError or UnsupportedError.");
  m.def(
      "nvrtc_version",
      [](const std::string& library_path) {
        const cuda::Nvrtc& nvrtc = cuda::Nvrtc::open(library_path);
        return std::make_pair(nvrtc.major(), nvrtc.minor());
      },
      nb::arg("library_path"), nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "nvrtc_targets",
      [](const std::string& library_path) { return cuda::Nvrtc::open(library_path).targets(); },
      nb::arg("library_path"), nb::call_guard<nb::gil_scoped_release>(),
      "Numbers of the targets that this NVRTC builds for, such as 90 of sm_90a, ascending.");
}

}  // namespace

void bind_cuda(nb::module_& m) {
  bind_kernel(m);
  bind_device(m);
  bind_nvrtc(m);
}

}  // namespace fuser_direct
