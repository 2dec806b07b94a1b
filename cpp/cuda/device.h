// The GPUs of this process: their properties, primary contexts, and the guard that makes one
// current.
#pragma once

#include <cstdint>
#include <string>

namespace fuser_direct::cuda {

struct DeviceProperties {
  std::string name;
  int compute_capability_major = 0;
  int compute_capability_minor = 0;
  int sm_count = 0;
  int l2_bytes = 0;
  int shared_per_block_optin_bytes = 0;
  int shared_per_sm_bytes = 0;
  int registers_per_sm = 0;
  int max_threads_per_sm = 0;
  int max_threads_per_block = 0;
  int max_block[3] = {0, 0, 0};
  int max_grid[3] = {0, 0, 0};
  bool has_clusters = false;
  std::int64_t memory_bytes = 0;
  int memory_clock_khz = 0;
  int bus_width_bits = 0;
  int clock_khz = 0;

  // "sm_90".
  std::string sm() const;
};

// Highest device number + 1 that is kept track of; no host has as many.
constexpr int kMaxDevices = 64;

// Properties of device `id`, read once and kept for good; makes no context. Thread-safe.
// Throws CudaUnavailableError when there is no usable driver or `id` isn't visible.
const DeviceProperties& device_properties(int id);

// Makes the primary context of a device current on this thread when it isn't, and the former one
// (or none) again when the guard goes. The context is the one that PyTorch and the CUDA runtime
// use; it is retained by the first guard and never released.
class DeviceGuard {
 public:
  // Throws CudaUnavailableError, or CudaError when the context can't be made.
  explicit DeviceGuard(int id);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  void* former_ = nullptr;
  bool is_switched_ = false;
};

}  // namespace fuser_direct::cuda
