#include "cuda/device.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "core/error.h"
#include "cuda/driver_api.h"

namespace fuser_direct::cuda {
namespace {

struct Devices {
  std::mutex mutex;
  std::array<std::atomic<CUcontext>, kMaxDevices> contexts{};
  std::array<std::atomic<const DeviceProperties*>, kMaxDevices> properties{};
};

// Left alive at exit, as the driver's state is: launches of other threads may still be under way.
Devices& devices() {
  static Devices* const instance = new Devices;
  return *instance;
}

// Index of `id` in the tables; throws unless the driver shows such a device.
std::size_t checked_index(const Driver& api, int id) {
  if (id >= 0 && id < api.device_count && id < kMaxDevices) return static_cast<std::size_t>(id);
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  throw CudaUnavailableError(
      "CUDA can't be used: device cuda:" + std::to_string(id) +
      " isn't visible; the driver shows " + std::to_string(api.device_count) +
      (api.device_count == 1 ? " device" : " devices") +
      ", numbered from 0 (CUDA_VISIBLE_DEVICES " +
      (visible != nullptr ? "is '" + std::string(visible) + "'" : "is not set") +
      "). Use one of those, or show more.");
}

int attribute(const Driver& api, int which, CUdevice device) {
  int value = 0;
  check(api.cuDeviceGetAttribute(&value, which, device), "cuDeviceGetAttribute");
  return value;
}

std::unique_ptr<const DeviceProperties> query(const Driver& api, int id) {
  CUdevice device = 0;
  check(api.cuDeviceGet(&device, id), "cuDeviceGet");
  const auto get = [&api, device](int which) { return attribute(api, which, device); };
  char name[256] = {};
  check(api.cuDeviceGetName(name, sizeof(name) - 1, device), "cuDeviceGetName");
  std::size_t memory_bytes = 0;
  check(api.cuDeviceTotalMem(&memory_bytes, device), "cuDeviceTotalMem");
  auto p = std::make_unique<DeviceProperties>();
  p->name = name;
  p->compute_capability_major = get(kCapabilityMajor);
  p->compute_capability_minor = get(kCapabilityMinor);
  p->sm_count = get(kSmCount);
  p->l2_bytes = get(kL2Bytes);
  p->shared_per_block_optin_bytes = get(kSharedPerBlockOptinBytes);
  p->shared_per_sm_bytes = get(kSharedPerSmBytes);
  p->registers_per_sm = get(kRegistersPerSm);
  p->max_threads_per_sm = get(kMaxThreadsPerSm);
  p->max_threads_per_block = get(kMaxThreadsPerBlock);
  const int block[] = {kMaxBlockX, kMaxBlockY, kMaxBlockZ};
  const int grid[] = {kMaxGridX, kMaxGridY, kMaxGridZ};
  for (std::size_t i = 0; i < 3; ++i) {
    p->max_block[i] = get(block[i]);
    p->max_grid[i] = get(grid[i]);
  }
  p->has_clusters = get(kClusterLaunch) != 0;
  p->memory_bytes = static_cast<std::int64_t>(memory_bytes);
  p->memory_clock_khz = get(kMemoryClockKhz);
  p->bus_width_bits = get(kBusWidthBits);
  p->clock_khz = get(kClockKhz);
  return p;
}

CUcontext primary_context(const Driver& api, int id) {
  const std::size_t index = checked_index(api, id);
  Devices& all = devices();
  CUcontext context = all.contexts[index].load(std::memory_order_acquire);
  if (context != nullptr) return context;
  const std::lock_guard<std::mutex> lock(all.mutex);
  context = all.contexts[index].load();
  if (context == nullptr) {
    CUdevice device = 0;
    check(api.cuDeviceGet(&device, id), "cuDeviceGet");
    check(api.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    all.contexts[index].store(context, std::memory_order_release);
  }
  return context;
}

}  // namespace

std::string DeviceProperties::sm() const {
  return "sm_" + std::to_string(compute_capability_major * 10 + compute_capability_minor);
}

const DeviceProperties& device_properties(int id) {
  const Driver& api = driver();
  const std::size_t index = checked_index(api, id);
  Devices& all = devices();
  if (const auto* known = all.properties[index].load(std::memory_order_acquire)) return *known;
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (const auto* known = all.properties[index].load()) return *known;
  const DeviceProperties* made = query(api, id).release();  // kept for good, see the header
  all.properties[index].store(made, std::memory_order_release);
  return *made;
}

DeviceGuard::DeviceGuard(int id) {
  const Driver& api = driver();
  CUcontext wanted = primary_context(api, id);
  CUcontext current = nullptr;
  check(api.cuCtxGetCurrent(&current), "cuCtxGetCurrent");
  if (current == wanted) return;
  check(api.cuCtxSetCurrent(wanted), "cuCtxSetCurrent");
  former_ = current;
  is_switched_ = true;
}

DeviceGuard::~DeviceGuard() {
  if (!is_switched_) return;
  if (const Driver* api = driver_if_ready()) api->cuCtxSetCurrent(static_cast<CUcontext>(former_));
}

}  // namespace fuser_direct::cuda
