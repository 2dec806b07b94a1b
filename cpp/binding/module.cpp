#include <nanobind/stl/string.h>

#include "binding/bind.h"
#include "core/source_stamps.h"

namespace nb = nanobind;

NB_MODULE(_ext, m) {
  m.doc() = "The executor of fuser_direct: runs compiled programs on tensors.";
  // Caches that live at module level are alive when the interpreter ends, which is no fault.
  nb::set_leak_warnings(false);
  fuser_direct::register_errors();
  m.def("source_stamps", &fuser_direct::source_stamps, nanobind::arg("folder"),
        "Path, size and time of change of every source (.py, .cuh, .so) under a folder, in a fixed "
        "order, as one text.");
  fuser_direct::bind_cuda(m);
  fuser_direct::bind_cpu(m);
  fuser_direct::bind_dlpack_output(m);
  fuser_direct::bind_program(m);
  fuser_direct::bind_executor(m);
  fuser_direct::bind_kernel_executor(m);
}
