#include "executor/signature.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace fuser_direct {

namespace {

void append_double(double value, Key& key) {
  int64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  key.push_back(bits);
}

void append_scalar(const Scalar& scalar, bool value_matters, Key& key) {
  key.push_back(2 | (static_cast<int64_t>(scalar.kind) << 8) | (int64_t{value_matters} << 16));
  if (!value_matters) return;
  key.push_back(scalar.integer);
  append_double(scalar.real_or_complex.real(), key);
  append_double(scalar.real_or_complex.imag(), key);
}

void append_tensor(const TensorArg& tensor, Key& key) {
  // The room for all words at once: this runs for every tensor of every call.
  const dl::DataType dtype = tensor.dtype;
  const auto ndim = static_cast<size_t>(tensor.ndim);
  const size_t first = key.size();
  key.resize(first + 3 + 2 * ndim);
  int64_t* out = key.data() + first;
  *out++ = 1 | (static_cast<int64_t>(dtype.code) << 8) | (int64_t{dtype.bits} << 16) |
           (int64_t{dtype.lanes} << 24) | (tensor.alignment_bytes() << 40) |
           (int64_t{tensor.is_read_only} << 48);
  *out++ =
      (static_cast<int64_t>(tensor.device.type) << 32) | static_cast<uint32_t>(tensor.device.id);
  *out++ = tensor.ndim;
  bool is_empty = false;
  for (size_t d = 0; d < ndim; ++d) {
    const int64_t size = tensor.sizes[d];
    is_empty |= size == 0;
    out[d] = size;
    out[ndim + d] = size == 1 ? 0 : tensor.strides[d];
  }
  if (is_empty) std::fill_n(out + ndim, ndim, 0);
}

}  // namespace

void append_argument(const Argument& argument, bool value_matters, Key& key) {
  switch (argument.kind) {
    case Argument::Kind::kTensor:
      append_tensor(argument.tensor, key);
      break;
    case Argument::Kind::kScalar:
      append_scalar(argument.scalar, value_matters, key);
      break;
    case Argument::Kind::kOther:
      key.push_back(3);
      break;
  }
}

void append_text(std::string_view text, Key& key) {
  key.push_back(static_cast<int64_t>(text.size()));
  for (size_t i = 0; i < text.size(); i += sizeof(int64_t)) {
    int64_t word = 0;
    std::memcpy(&word, text.data() + i, std::min(sizeof(word), text.size() - i));
    key.push_back(word);
  }
}

uint64_t hash_key(const int64_t* words, size_t count) {
  // Multiply and fold each word: 128-bit products mix all bits of both factors.
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;
  uint64_t hash = kOdd ^ count;
  for (size_t i = 0; i < count; ++i) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(hash ^ static_cast<uint64_t>(words[i])) * kOdd;
    hash = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
    hash += kOdd;
  }
  return hash;
}

std::vector<int64_t> canonical_strides(const TensorArg& tensor) {
  std::vector<int64_t> strides(static_cast<size_t>(tensor.ndim));
  const bool is_empty = tensor.numel() == 0;
  int64_t next = 1;
  for (int32_t d = tensor.ndim - 1; d >= 0; --d) {
    const auto i = static_cast<size_t>(d);
    strides[i] = is_empty || tensor.sizes[d] == 1 ? next : tensor.strides[d];
    next = std::max<int64_t>(1, std::abs(strides[i]) * std::max<int64_t>(1, tensor.sizes[d]));
  }
  return strides;
}

}  // namespace fuser_direct
