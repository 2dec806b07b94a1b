#include "binding/bind.h"

namespace nb = nanobind;

NB_MODULE(_ext, m) {
  m.doc() = "The executor of fuser_direct: runs compiled programs on tensors.";
  // Caches that live at module level are alive when the interpreter ends, which is no fault.
  nb::set_leak_warnings(false);
  fuser_direct::register_errors();
  fuser_direct::bind_cuda(m);
  fuser_direct::bind_cpu(m);
  fuser_direct::bind_dlpack_output(m);
  fuser_direct::bind_program(m);
  fuser_direct::bind_executor(m);
  fuser_direct::bind_kernel_executor(m);
}
