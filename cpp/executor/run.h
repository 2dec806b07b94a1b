// Runs a program on a call's arguments: the hot path.
#pragma once

#include <vector>

#include "executor/argument.h"
#include "executor/framework.h"
#include "executor/program.h"

namespace fuser_direct {

// Memory of a run, kept by the caller from run to run so that none allocates any of its own.
struct RunScratch {
  std::vector<Slot> slots;
  std::vector<int64_t> packed;
  std::vector<void*> params;
};

// Checks the arguments that are written in place, then issues every step in order, and appends the
// outputs to `outputs` as new references (if it throws, some may have been appended). Work on a
// CUDA device is queued on the framework's current stream and not waited for; CPU kernels are done
// on return. framework: the library that makes the outputs. Call with the interpreter's lock held;
// it is released while a long CPU kernel runs. Throws InputError for a read-only or overlapping
// argument that is written, and what a launch throws. Thread-safe; each run in progress has a
// scratch of its own.
void run_program(const Program& program, const std::vector<Argument>& arguments,
                 const Framework& framework, const Interpreter& interpreter, RunScratch& scratch,
                 std::vector<void*>& outputs);

}  // namespace fuser_direct
