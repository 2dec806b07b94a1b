#include "cuda/launch.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "core/error.h"
#include "cuda/driver_api.h"
#include "cuda/module.h"

namespace fuser_direct::cuda {
namespace {

// Shared memory that a block may have without asking for more. Source: CUDA C++ Programming Guide,
// compute capabilities, "opt-in required".
constexpr std::int64_t kSharedWithoutOptin = 48 * 1024;
// Largest cluster that every device with clusters takes; up to 16 needs the kernel's consent.
constexpr unsigned kPortableCluster = 8;
constexpr unsigned kMaxCluster = 16;
// First driver that captures early launches into graphs; devices that have clusters have them too.
constexpr int kEarlyLaunchDriver = 12030;

// Lets this thread make driver calls that a stream capture under way in the process would forbid:
// loading a module is one, and it touches no captured stream.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& api) : api_(api) {
    check(api_.cuThreadExchangeStreamCaptureMode(&mode_), "cuThreadExchangeStreamCaptureMode");
  }
  ~RelaxedCapture() { api_.cuThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const Driver& api_;
  int mode_ = kCaptureRelaxed;
};

// A kernel on one device.
struct Loaded {
  CUdevice device = 0;
  CUkernel kernel = nullptr;
  CUfunction function = nullptr;
  KernelAttributes attributes;
  const DeviceProperties* properties = nullptr;
  std::mutex mutex;  // held while a limit is raised
  std::atomic<std::int64_t> dynamic_shared_bytes{0};
  std::atomic<bool> takes_large_clusters{false};
};

int kernel_attribute(const Driver& api, int which, const Loaded& on) {
  int value = 0;
  check(api.cuKernelGetAttribute(&value, which, on.kernel, on.device), "cuKernelGetAttribute");
  return value;
}

// One requested launch, for checks and their messages.
struct Request {
  const std::string& name;
  const Loaded& on;
  const Dim3& grid;
  const Dim3& block;
  std::int64_t shared_bytes;
  unsigned cluster;

  [[noreturn]] void refuse(const std::string& what) const {
    throw LaunchError("launch " + name + ": " + what);
  }

  std::string kernel_text() const {
    return "(" + on.properties->sm() + ", " + std::to_string(on.attributes.registers) +
           " registers)";
  }

  void check_extents(const char* what, const Dim3& extents, const int (&limits)[3]) const {
    const std::pair<const char*, unsigned> named[] = {
        {" x", extents.x}, {" y", extents.y}, {" z", extents.z}};
    for (std::size_t i = 0; i < 3; ++i) {
      if (named[i].second == 0) refuse(std::string(what) + named[i].first + " is 0; use 1 or more");
      if (named[i].second > static_cast<unsigned>(limits[i])) {
        refuse(std::string(what) + named[i].first + " of " + std::to_string(named[i].second) +
               " exceeds the device's " + std::to_string(limits[i]) + " (" + on.properties->sm() +
               ")");
      }
    }
  }

  void check_threads() const {
    const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
    if (threads > static_cast<std::uint64_t>(on.attributes.max_threads_per_block)) {
      refuse("block of " + std::to_string(threads) + " threads exceeds this kernel's " +
             std::to_string(on.attributes.max_threads_per_block) + " " + kernel_text());
    }
  }

  void check_shared() const {
    const std::int64_t all = shared_bytes + on.attributes.static_shared_bytes;
    if (all > on.properties->shared_per_block_optin_bytes) {
      refuse("shared memory of " + std::to_string(all) + " bytes a block (" +
             std::to_string(on.attributes.static_shared_bytes) + " static) exceeds the device's " +
             std::to_string(on.properties->shared_per_block_optin_bytes) + " (" +
             on.properties->sm() + ")");
    }
  }

  void check_cluster() const {
    if (cluster == 1) return;
    if (!on.properties->has_clusters) {
      refuse("cluster of " + std::to_string(cluster) + " blocks, but " + on.properties->sm() +
             " has no clusters (sm_90 and later have)");
    }
    if (cluster == 0 || cluster > kMaxCluster) {
      refuse("cluster of " + std::to_string(cluster) + " blocks is out of range; use 1 to " +
             std::to_string(kMaxCluster));
    }
    if (grid.x % cluster != 0) {
      refuse("grid x of " + std::to_string(grid.x) + " is no multiple of the cluster's " +
             std::to_string(cluster) + " blocks");
    }
  }

  void check_all() const {
    // The block's total first: "2048 threads" tells more than its x extent.
    check_threads();
    check_extents("block", block, on.properties->max_block);
    check_extents("grid", grid, on.properties->max_grid);
    check_shared();
    check_cluster();
  }
};

// Raises what the kernel may use on its device, once for each higher demand.
void allow(const Driver& api, Loaded& on, std::int64_t shared_bytes, unsigned cluster) {
  const bool more_shared = shared_bytes + on.attributes.static_shared_bytes > kSharedWithoutOptin &&
                           shared_bytes > on.dynamic_shared_bytes.load(std::memory_order_acquire);
  const bool more_cluster =
      cluster > kPortableCluster && !on.takes_large_clusters.load(std::memory_order_acquire);
  if (!more_shared && !more_cluster) return;
  const std::lock_guard<std::mutex> lock(on.mutex);
  if (more_shared && shared_bytes > on.dynamic_shared_bytes.load()) {
    check(api.cuKernelSetAttribute(kKernelMaxDynamicSharedBytes, static_cast<int>(shared_bytes),
                                   on.kernel, on.device),
          "cuKernelSetAttribute");
    on.dynamic_shared_bytes.store(shared_bytes, std::memory_order_release);
  }
  if (more_cluster) {
    check(api.cuKernelSetAttribute(kKernelNonPortableCluster, 1, on.kernel, on.device),
          "cuKernelSetAttribute");
    on.takes_large_clusters.store(true, std::memory_order_release);
  }
}

// Whether kernels that wait for the one before them may be launched early (programmatic dependent
// launch). Without it they wait for nothing, and give the same results.
bool takes_early_launches() {
  const char* value = std::getenv("FUSER_DIRECT_EARLY_LAUNCH");
  return value == nullptr || std::strcmp(value, "0") != 0;
}

std::string launch_text(const Dim3& grid, const Dim3& block, unsigned shared_bytes) {
  const auto text = [](const Dim3& d) {
    return "(" + std::to_string(d.x) + ", " + std::to_string(d.y) + ", " + std::to_string(d.z) +
           ")";
  };
  return "grid " + text(grid) + ", block " + text(block) + ", " + std::to_string(shared_bytes) +
         " bytes of shared memory: cuLaunchKernelEx";
}

}  // namespace

struct Kernel::State {
  std::string image;
  std::string name;
  std::mutex mutex;  // held while the image is loaded
  CUlibrary library = nullptr;
  std::vector<std::unique_ptr<Loaded>> owned;
  std::array<std::atomic<Loaded*>, kMaxDevices> on{};

  // The kernel on `device`, loaded there if it wasn't.
  Loaded& at(int device) {
    const Driver& api = driver();  // first of all: it refuses forked children
    const DeviceProperties& properties = device_properties(device);
    auto& slot = on[static_cast<std::size_t>(device)];
    if (Loaded* loaded = slot.load(std::memory_order_acquire)) return *loaded;
    const std::lock_guard<std::mutex> lock(mutex);
    if (Loaded* loaded = slot.load()) return *loaded;
    const DeviceGuard guard(device);
    const RelaxedCapture relaxed(api);
    if (library == nullptr) library = load_image(image, name, device);
    const Function found = find_function(library, image, name, device);
    auto made = std::make_unique<Loaded>();
    check(api.cuDeviceGet(&made->device, device), "cuDeviceGet");
    made->kernel = found.kernel;
    made->function = found.function;
    made->properties = &properties;
    made->attributes.registers = kernel_attribute(api, kKernelRegisters, *made);
    made->attributes.local_bytes = kernel_attribute(api, kKernelLocalBytes, *made);
    made->attributes.static_shared_bytes = kernel_attribute(api, kKernelStaticSharedBytes, *made);
    made->attributes.max_threads_per_block = kernel_attribute(api, kKernelMaxThreads, *made);
    owned.push_back(std::move(made));
    slot.store(owned.back().get(), std::memory_order_release);
    return *owned.back();
  }
};

Kernel::Kernel(std::string image, std::string name) : state_(std::make_unique<State>()) {
  state_->image = std::move(image);
  state_->name = std::move(name);
}

Kernel::~Kernel() = default;

const std::string& Kernel::name() const noexcept { return state_->name; }

const std::string& Kernel::image() const noexcept { return state_->image; }

void Kernel::load(int device) const { state_->at(device); }

bool Kernel::is_loaded() const noexcept {
  for (const auto& slot : state_->on) {
    if (slot.load(std::memory_order_acquire) != nullptr) return true;
  }
  return false;
}

KernelAttributes Kernel::attributes(int device) const { return state_->at(device).attributes; }

int Kernel::blocks_per_sm(int device, int threads, std::size_t shared_bytes) const {
  const Driver& api = driver();
  Loaded& on = state_->at(device);
  allow(api, on, static_cast<std::int64_t>(shared_bytes), 1);
  const DeviceGuard guard(device);
  int blocks = 0;
  check(
      api.cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, on.function, threads, shared_bytes),
      "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  return blocks;
}

// What the driver is told each time, but for the stream.
struct Launch::Ready {
  CUfunction function = nullptr;
  LaunchAttribute attributes[2]{};
  unsigned count = 0;
};

Launch::Launch(const Kernel& kernel, int device, const Dim3& grid, const Dim3& block,
               unsigned shared_bytes, unsigned cluster, bool is_early)
    : kernel_(kernel),
      device_(device),
      grid_(grid),
      block_(block),
      shared_bytes_(shared_bytes),
      cluster_(cluster),
      is_early_(is_early) {}

Launch::~Launch() { delete ready_.load(); }

const Launch::Ready& Launch::ready() const {
  if (const Ready* known = ready_.load(std::memory_order_acquire)) return *known;
  const Driver& api = driver();
  Loaded& on = kernel_.state_->at(device_);
  Request{kernel_.name(), on, grid_, block_, shared_bytes_, cluster_}.check_all();
  allow(api, on, shared_bytes_, cluster_);
  auto made = std::make_unique<Ready>();
  made->function = on.function;
  if (cluster_ > 1) {
    LaunchAttribute& attribute = made->attributes[made->count++];
    attribute.id = kAttributeCluster;
    attribute.value.cluster[0] = cluster_;
    attribute.value.cluster[1] = attribute.value.cluster[2] = 1;
  }
  if (begins_early()) {
    LaunchAttribute& attribute = made->attributes[made->count++];
    attribute.id = kAttributeProgrammaticSerialization;
    attribute.value.is_allowed = 1;
  }
  const Ready* other = nullptr;
  if (!ready_.compare_exchange_strong(other, made.get(), std::memory_order_acq_rel)) return *other;
  return *made.release();
}

bool Launch::begins_early() const {
  return is_early_ && takes_early_launches() && driver().version >= kEarlyLaunchDriver &&
         device_properties(device_).has_clusters;
}

void Launch::queue(void** params, void* stream) const {
  const Driver& api = driver();  // first of all: it refuses forked children
  const Ready& made = ready();
  const LaunchConfig config{{grid_.x, grid_.y, grid_.z},
                            {block_.x, block_.y, block_.z},
                            shared_bytes_,
                            static_cast<CUstream>(stream),
                            // Read only, though the driver's type doesn't say so.
                            const_cast<LaunchAttribute*>(made.attributes),
                            made.count};
  const DeviceGuard guard(device_);
  const CUresult result = api.cuLaunchKernelEx(&config, made.function, params, nullptr);
  if (result == kSuccess) return;
  const std::string call = "launch " + kernel_.name() + " on cuda:" + std::to_string(device_) +
                           ", " + launch_text(grid_, block_, shared_bytes_);
  check(result, call.c_str());
}

}  // namespace fuser_direct::cuda
