// Arguments of a call, as the executor sees them: borrowed tensors and Python scalars.
#pragma once

#include <complex>
#include <cstdint>
#include <string>

#include "core/dlpack.h"

namespace fuser_direct {

// Upper bound of the alignment that a call's key tells apart.
constexpr int64_t kMaxAlignmentBytes = 64;

// A borrowed tensor. `sizes` and `strides` (in elements, may be negative) have `ndim` entries and
// live as long as the call.
struct TensorArg {
  char* data = nullptr;
  dl::Device device{dl::DeviceType::kCpu, 0};
  dl::DataType dtype{dl::TypeCode::kFloat, 32, 1};
  int32_t ndim = 0;
  const int64_t* sizes = nullptr;
  const int64_t* strides = nullptr;
  bool is_read_only = false;

  int64_t numel() const;
  // Bytes that an element's address must be a multiple of: the largest power of two up to 8 that
  // divides its size.
  int64_t element_alignment_bytes() const;
  bool is_aligned() const;
  // What a program may rely on. On a GPU the largest power of two up to kMaxAlignmentBytes that
  // divides the address. On a CPU the element's alignment: kernels there serve any address, and
  // allocators hand out all sorts, each of which would be a kind of call of its own.
  int64_t alignment_bytes() const;
};

// Whether two elements of the tensor surely or possibly share memory: an expanded dim, or strides
// that do not nest. Size-1 dims never matter.
bool may_overlap_itself(const TensorArg& tensor);

// Whether two tensors of one device surely or possibly share memory. Exact for tensors of the same
// strides, such as slices of one tensor; others are told apart by their ranges of bytes.
bool may_share_memory(const TensorArg& a, const TensorArg& b);

// Same address, dtype, sizes and strides (size-1 dims' strides aside).
bool same_layout(const TensorArg& a, const TensorArg& b);

enum class ScalarKind : uint8_t { kBool, kInt, kFloat, kComplex };

// A Python scalar's value.
struct Scalar {
  ScalarKind kind = ScalarKind::kInt;
  int64_t integer = 0;                         // bool and int
  std::complex<double> real_or_complex = 0.0;  // float and complex

  std::complex<double> as_complex() const;
  double as_double() const { return as_complex().real(); }
  int64_t as_int() const;
  bool as_bool() const;
};

// The value of a 0-d tensor in CPU memory; throws UnsupportedError for a dtype no fusion takes.
Scalar read_item(const TensorArg& tensor);

// "float tensor [2, 3]" style texts for error messages.
std::string dims_text(const int64_t* dims, int32_t ndim);

}  // namespace fuser_direct
