// The one place where the core's errors become Python exceptions.
#include <nanobind/nanobind.h>

#include <exception>
#include <new>

#include "binding/bind.h"
#include "core/error.h"

namespace nb = nanobind;

namespace fuser_direct {

namespace {

const char* class_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInput:
      return "InputError";
    case ErrorKind::kInputType:
      return "InputTypeError";
    case ErrorKind::kUsage:
      return "UsageError";
    case ErrorKind::kUnsupported:
      return "UnsupportedError";
    case ErrorKind::kUnsupportedDevice:
      return "UnsupportedDeviceError";
    case ErrorKind::kCompile:
      return "CompileError";
    case ErrorKind::kLaunch:
      return "LaunchError";
    case ErrorKind::kCuda:
      return "CudaError";
    case ErrorKind::kCudaUnavailable:
      return "CudaUnavailableError";
  }
  return "FuserError";
}

void set_error(const Error& error) noexcept {
  try {
    const nb::object type =
        nb::module_::import_("fuser_direct.errors").attr(class_name(error.kind()));
    PyErr_SetString(type.ptr(), error.what());
  } catch (nb::python_error& failed_import) {
    failed_import.restore();
  }
}

void translate(const std::exception_ptr& exception, void*) {
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    set_error(error);
  }
}

}  // namespace

void register_errors() { nb::register_exception_translator(translate); }

void set_python_error() noexcept {
  try {
    throw;
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const Error& error) {
    set_error(error);
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  } catch (...) {
    PyErr_SetString(PyExc_SystemError, "fuser_direct: an unknown C++ exception");
  }
}

}  // namespace fuser_direct
