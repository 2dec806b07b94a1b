// The key of a call: what a program was compiled for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "executor/argument.h"

namespace fuser_direct {

using Key = std::vector<int64_t>;

// Appends what decides a program about `argument`. A tensor: dtype, device, alignment, whether it
// is read-only, sizes and strides, with strides that move nothing (of size-1 dims and of empty
// tensors) as 0. A scalar: its kind, and its value too if `value_matters`.
void append_argument(const Argument& argument, bool value_matters, Key& key);

// Appends a text, such as the name of an option.
void append_text(std::string_view text, Key& key);

uint64_t hash_key(const int64_t* words, size_t count);

// Strides as the compiler may know them: equal for all tensors of one key. Where a stride moves
// nothing it is the size times the stride of the next dim, as in a row-major tensor.
std::vector<int64_t> canonical_strides(const TensorArg& tensor);

}  // namespace fuser_direct
