// The parts of the extension module.
#pragma once

#include <nanobind/nanobind.h>

namespace fuser_direct {

// Turns the core's errors into the classes of fuser_direct.errors.
void register_errors();

// Sets the Python error for the C++ exception that is being handled; for functions that are not
// bound through nanobind.
void set_python_error() noexcept;

void bind_cpu(nanobind::module_& m);
void bind_cuda(nanobind::module_& m);
void bind_dlpack_output(nanobind::module_& m);
void bind_program(nanobind::module_& m);
void bind_executor(nanobind::module_& m);
void bind_kernel_executor(nanobind::module_& m);

}  // namespace fuser_direct
