#include "cuda/stream_order.h"

#include <string>

#include "core/error.h"
#include "cuda/device.h"
#include "cuda/driver_api.h"

namespace fuser_direct::cuda {

namespace {

CUstream handle(void* stream) { return static_cast<CUstream>(stream); }

void free_in_order(int id, unsigned long long address, void* stream) noexcept {
  const Driver* api = driver_if_ready();
  if (api == nullptr) return;  // in a forked child
  try {
    const DeviceGuard guard(id);
    api->cuMemFreeAsync(address, handle(stream));
  } catch (const Error&) {
    // The device is lost, and its memory with it.
  }
}

class Event {
 public:
  explicit Event(const Driver& api) : api_(api) {
    check(api.cuEventCreate(&event_, kEventWithoutTiming), "cuEventCreate");
  }
  ~Event() { api_.cuEventDestroy(event_); }  // after its work, if that isn't done
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  CUevent get() const { return event_; }

 private:
  const Driver& api_;
  CUevent event_ = nullptr;
};

}  // namespace

std::shared_ptr<void> allocate_in_order(int id, std::size_t bytes, void* stream) {
  if (bytes == 0) return nullptr;
  const Driver& api = driver();
  const DeviceGuard guard(id);
  unsigned long long address = 0;
  const CUresult result = api.cuMemAllocAsync(&address, bytes, handle(stream));
  if (result != kSuccess) {
    throw CudaError("allocating " + std::to_string(bytes) + " bytes on cuda:" + std::to_string(id) +
                    " failed: " + describe(result));
  }
  return std::shared_ptr<void>(reinterpret_cast<void*>(address), [id, address, stream](void*) {
    free_in_order(id, address, stream);
  });
}

void make_wait(int id, void* later, void* earlier) {
  const Driver& api = driver();
  const DeviceGuard guard(id);
  const Event event(api);
  check(api.cuEventRecord(event.get(), handle(earlier)), "cuEventRecord");
  check(api.cuStreamWaitEvent(handle(later), event.get(), 0), "cuStreamWaitEvent");
}

bool call_after(int id, void* stream, void (*function)(void*), void* data) noexcept {
  const Driver* api = driver_if_ready();
  if (api == nullptr) return false;
  try {
    const DeviceGuard guard(id);
    int is_capturing = 0;
    if (api->cuStreamIsCapturing(handle(stream), &is_capturing) != kSuccess) return false;
    return is_capturing == 0 && api->cuLaunchHostFunc(handle(stream), function, data) == kSuccess;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace fuser_direct::cuda
