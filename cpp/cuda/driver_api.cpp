#include "cuda/driver_api.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>

#include "core/error.h"

namespace fuser_direct::cuda {
namespace {

using InitFn = CUresult(unsigned);
using VersionFn = CUresult(int*);
using ProcAddressFn = CUresult(const char*, void**, int, std::uint64_t, int*);

// The driver's state in this process. A child forked after cuInit can't use CUDA (the driver's own
// rule), so the flags below outlive the fork and tell it.
struct Process {
  std::mutex mutex;  // held while the driver is opened
  std::atomic<const Driver*> ready{nullptr};
  std::atomic<bool> init_started{false};
  std::atomic<bool> is_forked{false};
  bool has_fork_handler = false;
  Driver driver;
  DriverStatus status;
};

// Left alive at exit: other threads may be launching still.
Process& process() {
  static Process* const instance = new Process;
  return *instance;
}

// Runs in the child, which has this thread alone: another one may have held the lock.
void after_fork_in_child() {
  Process& p = process();
  new (&p.mutex) std::mutex;
  p.ready.store(nullptr);
  if (p.init_started.load()) p.is_forked.store(true);
}

std::string loaded_path(void* library) {
  link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return "libcuda.so.1";
  return map->l_name;
}

template <typename Function>
Function* symbol(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

// Environment variable and value, for messages about devices.
std::string visible_devices() {
  const char* value = std::getenv("CUDA_VISIBLE_DEVICES");
  return value == nullptr ? "CUDA_VISIBLE_DEVICES is not set"
                          : "CUDA_VISIBLE_DEVICES is '" + std::string(value) + "'";
}

constexpr const char* kForkedDetail =
    "this process was forked after CUDA had been initialised in its parent, and a CUDA context "
    "can't be used across fork; start workers with the 'spawn' or 'forkserver' method, or use "
    "CUDA first in the child";

DriverStatus refuse(DriverStatus status, Availability why, std::string detail) {
  status.availability = why;
  status.detail = std::move(detail);
  return status;
}

std::string init_failure_detail(CUresult result) {
  const std::string failed = "cuInit failed: " + describe(result);
  if (result == kStubLibrary)
    return failed +
           "; the libcuda.so.1 that was found is the toolkit's stub: take its 'stubs' "
           "folder out of LD_LIBRARY_PATH";
  return failed +
         "; check that nvidia-smi works for this user here, and that the driver's library "
         "and kernel module are of one version";
}

// Fills the entry points; returns the name of the first one that the driver lacks, else null.
const char* resolve_entry_points(ProcAddressFn* get_address, Driver& driver) {
  const auto resolve = [get_address](const char* name, int version) -> void* {
    void* address = nullptr;
    int found = 0;
    return get_address(name, &address, version, 0, &found) == kSuccess ? address : nullptr;
  };
#define FUSER_DIRECT_RESOLVE(name, version, type)                                    \
  driver.name = reinterpret_cast<std::add_pointer_t<type>>(resolve(#name, version)); \
  if (driver.name == nullptr) return #name;
  FUSER_DIRECT_DRIVER_ENTRY_POINTS(FUSER_DIRECT_RESOLVE)
#undef FUSER_DIRECT_RESOLVE
  return nullptr;
}

// Opens and initialises the driver into `p`; the caller holds the lock.
DriverStatus open_driver(Process& p) {
  DriverStatus status;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    return refuse(status, Availability::kNoLibrary,
                  std::string("the driver's library can't be opened (") +
                      (reason != nullptr ? reason : "libcuda.so.1") +
                      "); install an NVIDIA driver for CUDA 12.0 or later, or give the container "
                      "its GPUs (docker run --gpus all)");
  }
  // Never closed, used or not: the driver leaves threads and exit handlers behind.
  status.library = loaded_path(library);
  auto* get_version = symbol<VersionFn>(library, "cuDriverGetVersion");
  auto* init = symbol<InitFn>(library, "cuInit");
  if (get_version == nullptr || init == nullptr ||
      get_version(&status.driver_version) != kSuccess) {
    return refuse(status, Availability::kInitFailed,
                  status.library + " is no CUDA driver library (no cuInit, or no version)");
  }
  auto* get_address = symbol<ProcAddressFn>(library, "cuGetProcAddress_v2");
  if (status.driver_version < kMinDriverVersion || get_address == nullptr) {
    return refuse(status, Availability::kDriverTooOld,
                  "the NVIDIA driver serves CUDA " + version_text(status.driver_version) +
                      ", older than the " + version_text(kMinDriverVersion) +
                      " that is needed; update it to release 525 or later");
  }
  if (const char* missing = resolve_entry_points(get_address, p.driver)) {
    return refuse(status, Availability::kInitFailed,
                  std::string("the driver has no entry point ") + missing + "; reinstall it");
  }
  if (!p.has_fork_handler) {
    p.has_fork_handler = pthread_atfork(nullptr, nullptr, after_fork_in_child) == 0;
  }
  p.init_started.store(true);
  const CUresult result = init(0);
  if (result == kSuccess) p.driver.cuDeviceGetCount(&status.device_count);
  if (result == kSuccess && status.device_count > 0) {
    status.availability = Availability::kAvailable;
    p.driver.version = status.driver_version;
    p.driver.device_count = status.device_count;
    return status;
  }
  p.init_started.store(false);
  // A driver that some other library initialised before the fork answers the child like this.
  if (result == kNotInitialized) return refuse(status, Availability::kForked, kForkedDetail);
  if (result == kSuccess || result == kNoDevice) {
    return refuse(status, Availability::kNoDevice,
                  "the driver finds no GPU (" + visible_devices() +
                      "); check nvidia-smi, and that the container was given its GPUs");
  }
  return refuse(status, Availability::kInitFailed, init_failure_detail(result));
}

}  // namespace

DriverStatus driver_status() {
  Process& p = process();
  if (p.is_forked.load()) return refuse({}, Availability::kForked, kForkedDetail);
  const std::lock_guard<std::mutex> lock(p.mutex);
  if (p.ready.load() != nullptr) return p.status;
  // Failures aren't remembered: a GPU may be given to the process later.
  DriverStatus status = open_driver(p);
  if (status.availability == Availability::kAvailable) {
    p.status = status;
    p.ready.store(&p.driver, std::memory_order_release);
  }
  return status;
}

const Driver* driver_if_ready() noexcept { return process().ready.load(std::memory_order_acquire); }

const Driver& driver() {
  if (const Driver* ready = driver_if_ready()) return *ready;
  const DriverStatus status = driver_status();
  if (status.availability != Availability::kAvailable) {
    throw CudaUnavailableError("CUDA can't be used: " + status.detail + ".");
  }
  return *driver_if_ready();
}

std::string describe(CUresult result) {
  const Driver& d = process().driver;
  const char* name = nullptr;
  const char* text = nullptr;
  if (d.cuGetErrorName != nullptr) d.cuGetErrorName(result, &name);
  if (d.cuGetErrorString != nullptr) d.cuGetErrorString(result, &text);
  return std::string(name != nullptr ? name : "CUDA error") + " (" + std::to_string(result) +
         "): " + (text != nullptr ? text : "the driver has no text for it");
}

void check(CUresult result, const char* call) {
  if (result == kSuccess) return;
  std::string message = std::string(call) + " failed: " + describe(result);
  if (result == kOutOfMemory) {
    message +=
        "; the GPU is out of memory: free tensors, or give back the framework's cached "
        "blocks (torch.cuda.empty_cache())";
  } else if (result == kIllegalAddress ||
             (result >= kHardwareStackError && result <= kLaunchFailed)) {
    message +=
        "; a kernel that was launched earlier has faulted, and this process's CUDA context "
        "is lost with it: restart the process";
  }
  throw CudaError(message);
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace fuser_direct::cuda
