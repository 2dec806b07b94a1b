// One argument of a call.
#pragma once

#include <string>

#include "core/tensor.h"

namespace fuser_direct {

class Framework;

// A tensor, a scalar, or an object of any other type, which only the compiler can judge.
// `object` is the Python object and `framework` the library that it belongs to (null where it has
// none of its own); both are borrowed for the call.
struct Argument {
  enum class Kind : uint8_t { kTensor, kScalar, kOther };

  Kind kind = Kind::kOther;
  TensorArg tensor;
  Scalar scalar;
  void* object = nullptr;
  const Framework* framework = nullptr;
};

}  // namespace fuser_direct
