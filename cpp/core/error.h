// The errors of the core: one type for each class of fuser_direct.errors that C++ raises.
// binding/errors.cpp turns them into Python exceptions by their kind; nothing else knows of Python.
#pragma once

#include <stdexcept>
#include <string>

namespace fuser_direct {

// Names a class of fuser_direct.errors.
enum class ErrorKind {
  kInput,
  kInputType,
  kUsage,
  kUnsupported,
  kUnsupportedDevice,
  kCompile,
  kLaunch,
  kCuda,
  kCudaUnavailable,
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}

  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

template <ErrorKind kKind>
class ErrorOf : public Error {
 public:
  explicit ErrorOf(const std::string& message) : Error(kKind, message) {}
};

using InputError = ErrorOf<ErrorKind::kInput>;
using InputTypeError = ErrorOf<ErrorKind::kInputType>;
using UsageError = ErrorOf<ErrorKind::kUsage>;
using UnsupportedError = ErrorOf<ErrorKind::kUnsupported>;
using UnsupportedDeviceError = ErrorOf<ErrorKind::kUnsupportedDevice>;
using CompileError = ErrorOf<ErrorKind::kCompile>;
using LaunchError = ErrorOf<ErrorKind::kLaunch>;
using CudaError = ErrorOf<ErrorKind::kCuda>;
using CudaUnavailableError = ErrorOf<ErrorKind::kCudaUnavailable>;

}  // namespace fuser_direct
