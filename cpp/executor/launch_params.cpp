#include "executor/launch_params.h"

namespace fuser_direct {

std::string LaunchParams::to_string() const {
  const auto entry = [this](const char* name, Dim dim) {
    return std::string(name) + " = " + std::to_string(dims[dim]) + ", ";
  };
  return "Launch Parameters: " + entry("BlockDim.x", kBlockX) + entry("BlockDim.y", kBlockY) +
         entry("BlockDim.z", kBlockZ) + entry("GridDim.x", kGridX) + entry("GridDim.y", kGridY) +
         entry("GridDim.z", kGridZ) + "Smem Size = " + std::to_string(smem_bytes) + "\n";
}

}  // namespace fuser_direct
