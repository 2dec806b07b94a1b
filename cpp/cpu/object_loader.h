// Object files as LLVM writes them -> code that this process can run, without LLVM.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace fuser_direct::cpu {

// A linked function; `memory` owns its code and constants and gives them back.
struct LoadedFunction {
  uint64_t address;
  std::shared_ptr<void> memory;
};

// Loads `object`, built for this machine, and finds the function `name` in it. Functions that it
// calls are looked up in this process and in libm. The memory is never writable and executable at
// once. Thread-safe.
// Throws CompileError when the object is damaged, for another processor, or calls a function that
// isn't there, and when the system gives no memory.
LoadedFunction load_object(std::string_view object, const std::string& name);

// `object` linked as if to run at `address`, with external functions at addresses 16, 32, 48, ...
// in the order in which they are asked for; for any processor. What tests look at.
std::string link_image(std::string_view object, const std::string& name, uint64_t address);

}  // namespace fuser_direct::cpu
