#include "cpu/strided_copy.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "core/error.h"

namespace fuser_direct::cpu {

namespace {

struct Dim {
  int64_t size;
  int64_t dst_bytes;  // strides in bytes
  int64_t src_bytes;
};

// The dims that move, outermost first, neighbours joined where both tensors allow it.
std::vector<Dim> joined_dims(const TensorArg& dst, const TensorArg& src) {
  const int64_t itemsize = dst.dtype.itemsize();
  std::vector<Dim> dims;
  for (int32_t d = 0; d < dst.ndim; ++d) {
    if (dst.sizes[d] == 1) continue;
    const Dim dim{dst.sizes[d], dst.strides[d] * itemsize, src.strides[d] * itemsize};
    const bool joins = !dims.empty() && dims.back().dst_bytes == dim.dst_bytes * dim.size &&
                       dims.back().src_bytes == dim.src_bytes * dim.size;
    if (joins) {
      dims.back() = {dims.back().size * dim.size, dim.dst_bytes, dim.src_bytes};
    } else {
      dims.push_back(dim);
    }
  }
  return dims;
}

template <size_t kBytes>
void copy_line(char* dst, const char* src, const Dim& dim) {
  for (int64_t i = 0; i < dim.size; ++i) {
    std::memcpy(dst + i * dim.dst_bytes, src + i * dim.src_bytes, kBytes);
  }
}

void copy_innermost(char* dst, const char* src, const Dim& dim, int64_t itemsize) {
  if (dim.dst_bytes == itemsize && dim.src_bytes == itemsize) {
    std::memcpy(dst, src, static_cast<size_t>(dim.size * itemsize));
    return;
  }
  switch (itemsize) {
    case 1:
      return copy_line<1>(dst, src, dim);
    case 2:
      return copy_line<2>(dst, src, dim);
    case 4:
      return copy_line<4>(dst, src, dim);
    case 8:
      return copy_line<8>(dst, src, dim);
    default:
      return copy_line<16>(dst, src, dim);
  }
}

void copy_dims(char* dst, const char* src, const Dim* dims, size_t count, int64_t itemsize) {
  if (count == 1) return copy_innermost(dst, src, dims[0], itemsize);
  for (int64_t i = 0; i < dims[0].size; ++i) {
    copy_dims(dst + i * dims[0].dst_bytes, src + i * dims[0].src_bytes, dims + 1, count - 1,
              itemsize);
  }
}

}  // namespace

void strided_copy(const TensorArg& dst, const TensorArg& src) {
  const bool sizes_differ =
      dst.ndim != src.ndim || !std::equal(dst.sizes, dst.sizes + dst.ndim, src.sizes);
  if (sizes_differ || dst.dtype != src.dtype) {
    throw UsageError(
        "Program.copy: both buffers must have one dtype and the same sizes, got sizes " +
        dims_text(dst.sizes, dst.ndim) + " and " + dims_text(src.sizes, src.ndim));
  }
  if (dst.numel() == 0) return;
  const std::vector<Dim> dims = joined_dims(dst, src);
  const int64_t itemsize = dst.dtype.itemsize();
  if (dims.empty()) {
    std::memcpy(dst.data, src.data, static_cast<size_t>(itemsize));
  } else {
    copy_dims(dst.data, src.data, dims.data(), dims.size(), itemsize);
  }
}

}  // namespace fuser_direct::cpu
