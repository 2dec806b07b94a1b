#include "executor/in_place.h"

#include <algorithm>
#include <string>

#include "core/error.h"

namespace fuser_direct {

namespace {

std::string layout_text(const TensorArg& tensor) {
  return "sizes " + dims_text(tensor.sizes, tensor.ndim) + " and strides " +
         dims_text(tensor.strides, tensor.ndim);
}

void check_one(int64_t position, const Argument& argument) {
  const std::string name = "execute: argument " + std::to_string(position);
  if (argument.kind != Argument::Kind::kTensor) {
    throw InputError(name + " is updated in place and must be a tensor");
  }
  if (argument.tensor.is_read_only) {
    throw InputError(name + " is updated in place but is read-only, as JAX arrays always are; " +
                     "pass a writable copy, or return the new values as an output");
  }
  if (may_overlap_itself(argument.tensor)) {
    throw InputError(name + " is updated in place but its elements may share memory (" +
                     layout_text(argument.tensor) + "); pass a contiguous copy");
  }
}

void check_pair(int64_t written, const TensorArg& target, int64_t position, const TensorArg& other,
                bool both_written) {
  if (target.device != other.device || !may_share_memory(target, other)) return;
  if (same_layout(target, other) && !both_written) return;
  throw InputError("execute: argument " + std::to_string(written) +
                   " is updated in place but shares memory with argument " +
                   std::to_string(position) + "; pass a copy of one of them");
}

}  // namespace

void check_written_inputs(const std::vector<int64_t>& written,
                          const std::vector<Argument>& arguments) {
  const auto is_written = [&written](int64_t position) {
    return std::find(written.begin(), written.end(), position) != written.end();
  };
  for (int64_t position : written) {
    const Argument& target = arguments[static_cast<size_t>(position)];
    check_one(position, target);
    for (size_t i = 0; i < arguments.size(); ++i) {
      const auto other = static_cast<int64_t>(i);
      if (other == position || arguments[i].kind != Argument::Kind::kTensor) continue;
      check_pair(position, target.tensor, other, arguments[i].tensor, is_written(other));
    }
  }
}

}  // namespace fuser_direct
