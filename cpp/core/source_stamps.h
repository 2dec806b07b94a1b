// Tells whether the sources of a package changed, without reading them.
#pragma once

#include <string>

namespace fuser_direct {

// One line a source (.py, .cuh or .so) in `folder` and the folders below it but `__pycache__`:
// path, size in bytes and time of the last change in ns. Sorted. Files that can't be seen are left
// out.
std::string source_stamps(const std::string& folder);

}  // namespace fuser_direct
