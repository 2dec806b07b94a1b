// Launch constraints that a caller fixes by hand.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace fuser_direct {

// Plain data: limits are checked at launch, where there is a device. kUnset leaves a choice open.
struct LaunchParams {
  static constexpr int64_t kUnset = -1;
  enum Dim : size_t { kGridX, kGridY, kGridZ, kBlockX, kBlockY, kBlockZ };

  std::array<int64_t, 6> dims{kUnset, kUnset, kUnset, kUnset, kUnset, kUnset};
  int64_t smem_bytes = 0;

  // The extent along `dim`, 1 where unset.
  int64_t extent(Dim dim) const { return dims[dim] == kUnset ? 1 : dims[dim]; }
  bool is_set(Dim dim) const { return dims[dim] != kUnset; }

  std::string to_string() const;
};

inline bool operator==(const LaunchParams& a, const LaunchParams& b) {
  return a.dims == b.dims && a.smem_bytes == b.smem_bytes;
}

}  // namespace fuser_direct
