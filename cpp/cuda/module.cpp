#include "cuda/module.h"

#include <cstdint>
#include <cstring>

#include "core/error.h"
#include "cuda/device.h"

namespace fuser_direct::cuda {
namespace {

// Where an ELF header of a cubin says its target. The two layouts differ in the OS ABI byte.
// Source: LLVM's BinaryFormat/ELF.h, EF_CUDA_SM; checked on cubins of NVRTC 12.0 to 13.5.
constexpr std::size_t kElfOsAbi = 7;
constexpr std::size_t kElfFlags = 48;
constexpr unsigned char kOsAbiUntil12 = 0x33;
constexpr unsigned char kOsAbiFrom13 = 0x41;

// PTX text after which a driver lists why it refused it.
constexpr std::size_t kLogBytes = 4096;
constexpr int kJitErrorLogBuffer = 5;
constexpr int kJitErrorLogBufferBytes = 6;

bool is_cubin(const std::string& image) {
  return image.size() > kElfFlags + 4 && image.compare(0, 4, "\177ELF") == 0;
}

std::string cubin_target(const std::string& image) {
  std::uint32_t flags = 0;
  std::memcpy(&flags, image.data() + kElfFlags, sizeof(flags));
  const auto os_abi = static_cast<unsigned char>(image[kElfOsAbi]);
  if (os_abi == kOsAbiUntil12) return "sm_" + std::to_string(flags & 0xffU);
  if (os_abi == kOsAbiFrom13) return "sm_" + std::to_string(flags >> 8U & 0xffU);
  return "";
}

std::string ptx_target(const std::string& image) {
  const std::size_t at = image.find("\n.target sm_");
  if (at == std::string::npos) return "";
  const std::size_t begin = at + std::strlen("\n.target sm_");
  return "compute_" + image.substr(begin, image.find_first_of(", \r\n", begin) - begin);
}

// What to do about a refused image, given the driver's reason.
std::string remedy(CUresult result, const std::string& image, const DeviceProperties& device) {
  const std::string driver_version = version_text(driver().version);
  const std::string target = image_target(image);
  switch (result) {
    case kNoBinaryForGpu:
      return "; the image is for " + (target.empty() ? "another target" : target) +
             ", the device is " + device.sm() + ": build it for that, or build PTX";
    case kUnsupportedPtxVersion:
    case kInvalidPtx:
    case kInvalidImage:
      return "; the image was built for " + (target.empty() ? "no known target" : target) +
             ", the driver serves CUDA " + driver_version +
             ": if NVRTC is of a later CUDA than the driver, install the NVRTC of the driver's own "
             "major version (pip install fuser_direct[cu12] or fuser_direct[cu13]) or update the "
             "driver";
    default:
      return "";
  }
}

[[noreturn]] void refuse(CUresult result, const char* call, const std::string& image,
                         const std::string& name, int device, const char* log) {
  const DeviceProperties& properties = device_properties(device);
  const std::string speaker =
      "load " + name + " on cuda:" + std::to_string(device) + " (" + properties.sm() + "): ";
  if (result == kOutOfMemory) check(result, (speaker + call).c_str());
  std::string message =
      speaker + call + " failed: " + describe(result) + remedy(result, image, properties);
  if (log[0] != '\0') message += std::string("\n") + log;
  throw CudaError(message);
}

}  // namespace

std::string image_target(const std::string& image) {
  return is_cubin(image) ? cubin_target(image) : ptx_target(image);
}

CUlibrary load_image(const std::string& image, const std::string& name, int device) {
  const Driver& api = driver();
  std::string log(kLogBytes, '\0');
  // The driver takes an option's value, also a number, as a pointer.
  int keys[] = {kJitErrorLogBuffer, kJitErrorLogBufferBytes};
  void* values[] = {log.data(), reinterpret_cast<void*>(kLogBytes - 1)};
  const unsigned count = is_cubin(image) ? 0 : 2;  // a cubin isn't compiled, so it has no log
  CUlibrary library = nullptr;
  const CUresult result =
      api.cuLibraryLoadData(&library, image.c_str(), keys, values, count, nullptr, nullptr, 0);
  if (result != kSuccess) refuse(result, "cuLibraryLoadData", image, name, device, log.c_str());
  return library;
}

Function find_function(CUlibrary library, const std::string& image, const std::string& name,
                       int device) {
  const Driver& api = driver();
  Function found;
  CUresult result = api.cuLibraryGetKernel(&found.kernel, library, name.c_str());
  if (result == kNotFound) {
    throw CudaError("load " + name + " on cuda:" + std::to_string(device) +
                    ": the image has no kernel of this name");
  }
  if (result != kSuccess) refuse(result, "cuLibraryGetKernel", image, name, device, "");
  result = api.cuKernelGetFunction(&found.function, found.kernel);
  if (result != kSuccess) refuse(result, "cuKernelGetFunction", image, name, device, "");
  return found;
}

}  // namespace fuser_direct::cuda
