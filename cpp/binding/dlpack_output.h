// A tensor that a library takes over by its `from_dlpack`.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "core/dlpack.h"

namespace fuser_direct {

// Memory with the stream that fills it. Python sees `__dlpack__` and `__dlpack_device__`, which can
// be called any number of times.
struct DlpackOutput {
  std::shared_ptr<dl::ManagedTensor> tensor;
  void* stream = nullptr;
};

// Asks which stream a library works on: `__dlpack__` notes what it is told, and hands out nothing.
struct StreamProbe {
  dl::Device device{dl::DeviceType::kCuda, 0};
  bool is_asked = false;
  void* stream = nullptr;
};

// The tensor of a DLPack capsule of either version, and its flags; lives as long as the capsule.
// Throws InputError, as TensorLibrary::read.
struct CapsuleView {
  const dl::Tensor* tensor = nullptr;
  uint64_t flags = 0;
};
CapsuleView view_capsule(const nanobind::object& capsule);

// A stream as DLPack numbers them: the default one is 1.
int64_t stream_number(void* stream);

}  // namespace fuser_direct
