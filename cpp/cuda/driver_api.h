// The CUDA driver, opened with dlopen at the first call that needs a GPU and never before. No CUDA
// header is needed to build: the few types and constants in use are declared here, with the layouts
// and values that the driver's ABI keeps for good.
#pragma once

#include <cstddef>
#include <string>
#include <type_traits>

namespace fuser_direct::cuda {

using CUresult = int;
using CUdevice = int;
using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUfunction = struct CUfunc_st*;
using CUlibrary = struct CUlib_st*;
using CUkernel = struct CUkern_st*;
using CUevent = struct CUevent_st*;

constexpr CUresult kSuccess = 0;
constexpr CUresult kOutOfMemory = 2;
constexpr CUresult kNotInitialized = 3;
constexpr CUresult kStubLibrary = 34;
constexpr CUresult kNoDevice = 100;
constexpr CUresult kInvalidImage = 200;
constexpr CUresult kNoBinaryForGpu = 209;
constexpr CUresult kInvalidPtx = 218;
constexpr CUresult kUnsupportedPtxVersion = 222;
constexpr CUresult kNotFound = 500;
constexpr CUresult kIllegalAddress = 700;
constexpr CUresult kHardwareStackError = 714;
constexpr CUresult kLaunchFailed = 719;

// Lowest driver that serves us: 12.0 brought cuLibraryLoadData, which all kernels are loaded by.
constexpr int kMinDriverVersion = 12000;

// Device attributes (CUdevice_attribute).
constexpr int kMaxThreadsPerBlock = 1;
constexpr int kMaxBlockX = 2;
constexpr int kMaxBlockY = 3;
constexpr int kMaxBlockZ = 4;
constexpr int kMaxGridX = 5;
constexpr int kMaxGridY = 6;
constexpr int kMaxGridZ = 7;
constexpr int kClockKhz = 13;
constexpr int kSmCount = 16;
constexpr int kMemoryClockKhz = 36;
constexpr int kBusWidthBits = 37;
constexpr int kL2Bytes = 38;
constexpr int kMaxThreadsPerSm = 39;
constexpr int kCapabilityMajor = 75;
constexpr int kCapabilityMinor = 76;
constexpr int kSharedPerSmBytes = 81;
constexpr int kRegistersPerSm = 82;
constexpr int kSharedPerBlockOptinBytes = 97;
constexpr int kClusterLaunch = 120;

// Kernel attributes (CUfunction_attribute).
constexpr int kKernelMaxThreads = 0;
constexpr int kKernelStaticSharedBytes = 1;
constexpr int kKernelLocalBytes = 3;
constexpr int kKernelRegisters = 4;
constexpr int kKernelMaxDynamicSharedBytes = 8;
constexpr int kKernelNonPortableCluster = 14;

// CU_EVENT_DISABLE_TIMING.
constexpr unsigned kEventWithoutTiming = 2;

// CUstreamCaptureMode: calls of any kind are allowed to a thread in this mode.
constexpr int kCaptureRelaxed = 2;

// CUlaunchAttribute, of which we set the cluster's extents and programmatic serialization.
struct LaunchAttribute {
  unsigned id;
  unsigned padding;
  union {
    unsigned cluster[3];
    int is_allowed;
    char bytes[64];
  } value;
};
static_assert(sizeof(LaunchAttribute) == 72 && offsetof(LaunchAttribute, value) == 8);
constexpr unsigned kAttributeCluster = 4;
constexpr unsigned kAttributeProgrammaticSerialization = 6;

// CUlaunchConfig.
struct LaunchConfig {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  CUstream stream;
  LaunchAttribute* attributes;
  unsigned num_attributes;
};
static_assert(sizeof(LaunchConfig) == 56 && offsetof(LaunchConfig, stream) == 32);

// Every entry point in use, with the lowest version that has it in the form we call. The version is
// asked for by name, so a later driver hands out this form even where it has a newer one.
#define FUSER_DIRECT_DRIVER_ENTRY_POINTS(X)                                            \
  X(cuGetErrorName, 6000, CUresult(CUresult, const char**))                            \
  X(cuGetErrorString, 6000, CUresult(CUresult, const char**))                          \
  X(cuDeviceGetCount, 2000, CUresult(int*))                                            \
  X(cuDeviceGet, 2000, CUresult(CUdevice*, int))                                       \
  X(cuDeviceGetName, 2000, CUresult(char*, int, CUdevice))                             \
  X(cuDeviceGetAttribute, 2000, CUresult(int*, int, CUdevice))                         \
  X(cuDeviceTotalMem, 3020, CUresult(std::size_t*, CUdevice))                          \
  X(cuDevicePrimaryCtxRetain, 7000, CUresult(CUcontext*, CUdevice))                    \
  X(cuCtxGetCurrent, 4000, CUresult(CUcontext*))                                       \
  X(cuCtxSetCurrent, 4000, CUresult(CUcontext))                                        \
  X(cuThreadExchangeStreamCaptureMode, 10010, CUresult(int*))                          \
  X(cuLibraryLoadData, 12000,                                                          \
    CUresult(CUlibrary*, const void*, int*, void**, unsigned, int*, void**, unsigned)) \
  X(cuLibraryGetKernel, 12000, CUresult(CUkernel*, CUlibrary, const char*))            \
  X(cuKernelGetFunction, 12000, CUresult(CUfunction*, CUkernel))                       \
  X(cuKernelGetAttribute, 12000, CUresult(int*, int, CUkernel, CUdevice))              \
  X(cuKernelSetAttribute, 12000, CUresult(int, int, CUkernel, CUdevice))               \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050,                                 \
    CUresult(int*, CUfunction, int, std::size_t))                                      \
  X(cuMemAllocAsync, 11020, CUresult(unsigned long long*, std::size_t, CUstream))      \
  X(cuMemFreeAsync, 11020, CUresult(unsigned long long, CUstream))                     \
  X(cuEventCreate, 2000, CUresult(CUevent*, unsigned))                                 \
  X(cuEventRecord, 2000, CUresult(CUevent, CUstream))                                  \
  X(cuEventDestroy, 4000, CUresult(CUevent))                                           \
  X(cuStreamWaitEvent, 3020, CUresult(CUstream, CUevent, unsigned))                    \
  X(cuStreamIsCapturing, 10000, CUresult(CUstream, int*))                              \
  X(cuLaunchHostFunc, 10000, CUresult(CUstream, void (*)(void*), void*))               \
  X(cuLaunchKernelEx, 11060, CUresult(const LaunchConfig*, CUfunction, void**, void**))

// The driver of this process, after cuInit.
struct Driver {
#define FUSER_DIRECT_DECLARE(name, version, type) std::add_pointer_t<type> name = nullptr;
  FUSER_DIRECT_DRIVER_ENTRY_POINTS(FUSER_DIRECT_DECLARE)
#undef FUSER_DIRECT_DECLARE
  int version = 0;  // 1000 * major + 10 * minor
  int device_count = 0;
};

enum class Availability { kAvailable, kNoLibrary, kDriverTooOld, kInitFailed, kNoDevice, kForked };

// What is known of the driver; `detail` says in a sentence why it can't be used, and what to do.
struct DriverStatus {
  Availability availability = Availability::kNoLibrary;
  std::string detail;
  int driver_version = 0;
  int device_count = 0;
  std::string library;  // full path, empty when none was opened
};

// The driver, opened and initialised by the first call; later calls cost one atomic load.
// Thread-safe. Throws CudaUnavailableError saying which case it is and what to do. A child that was
// forked from a process that had initialised CUDA is refused at once.
const Driver& driver();

// The driver if this process has initialised it and wasn't forked since, else null; opens nothing.
const Driver* driver_if_ready() noexcept;

// As driver(), but tells instead of throwing.
DriverStatus driver_status();

// "CUDA_ERROR_INVALID_VALUE (1): invalid argument" of a result.
std::string describe(CUresult result);

// Throws CudaError naming the call unless `result` is success; out of memory says so.
void check(CUresult result, const char* call);

// "12.4" of 12040.
std::string version_text(int version);

}  // namespace fuser_direct::cuda
