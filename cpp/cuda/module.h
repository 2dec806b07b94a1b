// A cubin or PTX image as the driver holds it, and what can be read from the image itself.
#pragma once

#include <string>

#include "cuda/driver_api.h"

namespace fuser_direct::cuda {

// Target that an image was built for: "sm_90a" of a cubin, "compute_90" of PTX; "" if it is
// neither.
std::string image_target(const std::string& image);

// Loads `image` for all devices; `name` and `device` are for messages, and the device's context
// must be current. It is never unloaded: work that is queued still runs it, and a captured CUDA
// graph replays its kernels without keeping it alive, long after the kernel's last owner here has
// gone. Throws CudaError that says what the driver didn't like, with versions and the way out.
CUlibrary load_image(const std::string& image, const std::string& name, int device);

// One function of a loaded image.
struct Function {
  CUkernel kernel = nullptr;      // on any device
  CUfunction function = nullptr;  // in the context that was current when it was asked for
};

// The function `name` of `image`, which is loaded as `library`, made ready in the current context,
// that of `device`. Throws CudaError, as load_image() does.
Function find_function(CUlibrary library, const std::string& image, const std::string& name,
                       int device);

}  // namespace fuser_direct::cuda
