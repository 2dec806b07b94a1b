// Copies between CPU tensors of any strides.
#pragma once

#include "core/tensor.h"

namespace fuser_direct::cpu {

// Copies every element of src to dst, which have equal sizes and dtypes and share no memory.
// Throws UsageError when sizes or dtypes differ.
void strided_copy(const TensorArg& dst, const TensorArg& src);

}  // namespace fuser_direct::cpu
