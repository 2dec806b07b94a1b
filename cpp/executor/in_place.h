// Which arguments a program may write into.
#pragma once

#include <cstdint>
#include <vector>

#include "executor/argument.h"

namespace fuser_direct {

// Throws InputError naming argument positions when a written argument is read-only, overlaps
// itself, or shares memory with another tensor argument; the same memory with the same layout is
// fine unless both are written. Made for each call, since a call's key doesn't say where memory
// lies.
void check_written_inputs(const std::vector<int64_t>& written,
                          const std::vector<Argument>& arguments);

}  // namespace fuser_direct
