#include "core/tensor.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/half.h"

namespace fuser_direct {

int64_t TensorArg::numel() const {
  int64_t count = 1;
  for (int32_t d = 0; d < ndim; ++d) count *= sizes[d];
  return count;
}

int64_t TensorArg::element_alignment_bytes() const {
  const auto itemsize = static_cast<uint64_t>(dtype.itemsize());
  const uint64_t power = itemsize & (~itemsize + 1);  // 0 for a dtype without bits
  return static_cast<int64_t>(std::clamp<uint64_t>(power, 1, 8));
}

bool TensorArg::is_aligned() const {
  const auto mask = static_cast<uintptr_t>(element_alignment_bytes() - 1);
  return (reinterpret_cast<uintptr_t>(data) & mask) == 0;
}

int64_t TensorArg::alignment_bytes() const {
  if (device.type == dl::DeviceType::kCpu) return element_alignment_bytes();
  const auto address = reinterpret_cast<uintptr_t>(data) | uintptr_t{kMaxAlignmentBytes};
  return static_cast<int64_t>(address & (~address + 1));
}

namespace {

// Half-open range of bytes that a tensor's elements lie in; empty for an empty tensor.
struct ByteRange {
  const char* begin;
  const char* end;
};

ByteRange byte_range(const TensorArg& tensor) {
  if (tensor.numel() == 0) return {tensor.data, tensor.data};
  int64_t low = 0;
  int64_t high = 0;
  for (int32_t d = 0; d < tensor.ndim; ++d) {
    const int64_t reach = (tensor.sizes[d] - 1) * tensor.strides[d];
    (reach < 0 ? low : high) += reach;
  }
  const int64_t itemsize = tensor.dtype.itemsize();
  return {tensor.data + low * itemsize, tensor.data + (high + 1) * itemsize};
}

// One dim of two tensors that have the same stride along it: the difference of their indices lies
// in low..high.
struct IndexDifference {
  int64_t stride;  // positive
  int64_t low;
  int64_t high;
};

// Whether sum(stride * difference) over dims [first, end) can be `distance`; dims from the largest
// stride down.
bool can_reach(const std::vector<IndexDifference>& dims, size_t first, int64_t distance) {
  if (first == dims.size()) return distance == 0;
  int64_t rest_low = 0;
  int64_t rest_high = 0;
  for (size_t d = first + 1; d < dims.size(); ++d) {
    rest_low += dims[d].stride * dims[d].low;
    rest_high += dims[d].stride * dims[d].high;
  }
  const auto [stride, low, high] = dims[first];
  const auto floor_div = [](int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); };
  const int64_t from = std::max(low, -floor_div(-(distance - rest_high), stride));
  const int64_t to = std::min(high, floor_div(distance - rest_low, stride));
  // Strides that nest leave two candidates at most; where there are more, finding out would take
  // long.
  constexpr int64_t kMaxCandidates = 4;
  if (to - from >= kMaxCandidates) return true;
  for (int64_t difference = from; difference <= to; ++difference) {
    if (can_reach(dims, first + 1, distance - stride * difference)) return true;
  }
  return false;
}

// The dims in which two tensors move, from the largest stride down; nothing if strides differ.
std::optional<std::vector<IndexDifference>> index_differences(const TensorArg& a,
                                                              const TensorArg& b) {
  if (a.ndim != b.ndim) return std::nullopt;
  std::vector<IndexDifference> dims;
  for (int32_t d = 0; d < a.ndim; ++d) {
    if (a.sizes[d] == 1 && b.sizes[d] == 1) continue;
    const int64_t stride = a.sizes[d] == 1 ? b.strides[d] : a.strides[d];
    if (b.sizes[d] != 1 && b.strides[d] != stride) return std::nullopt;
    if (stride > 0) dims.push_back({stride, 1 - b.sizes[d], a.sizes[d] - 1});
    if (stride < 0) dims.push_back({-stride, 1 - a.sizes[d], b.sizes[d] - 1});
  }
  std::sort(dims.begin(), dims.end(),
            [](const IndexDifference& x, const IndexDifference& y) { return x.stride > y.stride; });
  return dims;
}

}  // namespace

bool may_share_memory(const TensorArg& a, const TensorArg& b) {
  const ByteRange range_a = byte_range(a);
  const ByteRange range_b = byte_range(b);
  if (range_a.begin >= range_b.end || range_b.begin >= range_a.end) return false;
  const int64_t itemsize = a.dtype.itemsize();
  const int64_t distance_bytes = b.data - a.data;
  if (itemsize != b.dtype.itemsize() || distance_bytes % itemsize != 0) return true;
  const auto dims = index_differences(a, b);
  return !dims || can_reach(*dims, 0, distance_bytes / itemsize);
}

bool may_overlap_itself(const TensorArg& tensor) {
  if (tensor.numel() <= 1) return false;
  std::vector<std::pair<int64_t, int64_t>> dims;  // (|stride|, size)
  for (int32_t d = 0; d < tensor.ndim; ++d) {
    if (tensor.sizes[d] > 1) dims.emplace_back(std::abs(tensor.strides[d]), tensor.sizes[d]);
  }
  std::sort(dims.begin(), dims.end());
  int64_t reach = 0;
  for (const auto& [stride, size] : dims) {
    if (stride <= reach) return true;
    reach += (size - 1) * stride;
  }
  return false;
}

bool same_layout(const TensorArg& a, const TensorArg& b) {
  if (a.data != b.data || a.dtype != b.dtype || a.ndim != b.ndim) return false;
  for (int32_t d = 0; d < a.ndim; ++d) {
    if (a.sizes[d] != b.sizes[d]) return false;
    if (a.sizes[d] > 1 && a.strides[d] != b.strides[d]) return false;
  }
  return true;
}

std::complex<double> Scalar::as_complex() const {
  if (kind == ScalarKind::kBool || kind == ScalarKind::kInt) return static_cast<double>(integer);
  return real_or_complex;
}

int64_t Scalar::as_int() const {
  if (kind == ScalarKind::kBool || kind == ScalarKind::kInt) return integer;
  return static_cast<int64_t>(real_or_complex.real());
}

bool Scalar::as_bool() const {
  if (kind == ScalarKind::kBool || kind == ScalarKind::kInt) return integer != 0;
  return real_or_complex != 0.0;
}

namespace {

template <typename T>
T load(const char* data) {
  T value;
  std::memcpy(&value, data, sizeof(T));
  return value;
}

Scalar integer_scalar(ScalarKind kind, int64_t value) {
  Scalar scalar;
  scalar.kind = kind;
  scalar.integer = value;
  return scalar;
}

Scalar floating_scalar(ScalarKind kind, std::complex<double> value) {
  Scalar scalar;
  scalar.kind = kind;
  scalar.real_or_complex = value;
  return scalar;
}

constexpr int type_id(dl::TypeCode code, int bits) { return static_cast<int>(code) * 256 + bits; }

}  // namespace

Scalar read_item(const TensorArg& tensor) {
  const char* data = tensor.data;
  const auto real = [](double value) { return floating_scalar(ScalarKind::kFloat, value); };
  switch (type_id(tensor.dtype.code, tensor.dtype.bits)) {
    case type_id(dl::TypeCode::kBool, 8):
      return integer_scalar(ScalarKind::kBool, load<uint8_t>(data) != 0);
    case type_id(dl::TypeCode::kInt, 32):
      return integer_scalar(ScalarKind::kInt, load<int32_t>(data));
    case type_id(dl::TypeCode::kInt, 64):
      return integer_scalar(ScalarKind::kInt, load<int64_t>(data));
    case type_id(dl::TypeCode::kFloat, 16):
      return real(half_to_float(load<uint16_t>(data)));
    case type_id(dl::TypeCode::kBfloat, 16):
      return real(bfloat16_to_float(load<uint16_t>(data)));
    case type_id(dl::TypeCode::kFloat, 32):
      return real(load<float>(data));
    case type_id(dl::TypeCode::kFloat, 64):
      return real(load<double>(data));
    case type_id(dl::TypeCode::kComplex, 64):
      return floating_scalar(ScalarKind::kComplex, {load<float>(data), load<float>(data + 4)});
    case type_id(dl::TypeCode::kComplex, 128):
      return floating_scalar(ScalarKind::kComplex, {load<double>(data), load<double>(data + 8)});
    default:
      throw UnsupportedError("a 0-d tensor of DLPack type code " +
                             std::to_string(static_cast<int>(tensor.dtype.code)) + " with " +
                             std::to_string(tensor.dtype.bits) +
                             " bits can't be read as a scalar; cast it to a supported dtype");
  }
}

std::string dims_text(const int64_t* dims, int32_t ndim) {
  std::string text = "[";
  for (int32_t d = 0; d < ndim; ++d) {
    if (d > 0) text += ", ";
    text += std::to_string(dims[d]);
  }
  return text + "]";
}

}  // namespace fuser_direct
