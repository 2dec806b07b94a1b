// A call cache with the Python compiler that fills it.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>
#include <vector>

#include "binding/exchange.h"
#include "executor/call_cache.h"

namespace fuser_direct {

// What a compiler is told of one argument. Plain data; owns nothing of the argument but a scalar.
struct ArgInfo {
  Argument::Kind kind = Argument::Kind::kOther;
  TensorArg tensor;  // `data`, `sizes` and `strides` unset: see the vectors
  int64_t alignment_bytes = 0;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  Scalar scalar;
  std::string type_name;
};

ArgInfo make_arg_info(const Argument& argument);

// Python's value of a scalar.
nanobind::object scalar_value(const Scalar& scalar);

// The argument objects of the call that this thread is compiling a program for, of the innermost
// where there are several; empty outside of compiling.
nanobind::list inputs_being_compiled();

// What a call is besides its arguments.
struct CallContext {
  nanobind::handle device;  // None or an int
  nanobind::object extra;   // the compiler's third argument, or the first of the two in it
  nanobind::handle second;  // if valid, the compiler gets the tuple (extra, second)
  Key extra_key;            // what of them decides a program; empty in the common case
};

// Calls `compiler(args, device, extra) -> Program` for each new kind of call, once however many
// threads ask, and runs the program. All functions need the GIL.
class Executor {
 public:
  Executor(nanobind::object compiler, std::vector<int64_t> shape_scalars);

  nanobind::list execute(nanobind::handle inputs, const CallContext& context);

  // Compiles without running.
  void prepare(nanobind::handle inputs, const CallContext& context);

  // Null when there is no program for such inputs yet.
  CallCache::ProgramPtr lookup(nanobind::handle inputs, const CallContext& context) const;

  // Mean nanoseconds of reading `inputs`, and of making and finding their key; for benchmarks.
  std::pair<double, double> time_lookup(nanobind::handle inputs, int64_t rounds) const;

  // The program of the last call, or null.
  CallCache::ProgramPtr most_recent() const { return recent_.program; }
  CacheCounters counters() const;
  const nanobind::object& compiler() const { return compiler_; }

  // Drops the compiler and all programs, to break reference cycles.
  void clear();

 private:
  CallCache::ProgramPtr find_or_compile(const ArgumentList& list, const CallContext& context,
                                        const Key& key);
  CallCache::ProgramPtr claim_or_compile(const ArgumentList& list, const CallContext& context,
                                         const Key& key);
  std::shared_ptr<Program> compile(const ArgumentList& list, const CallContext& context) const;
  void make_key(const ArgumentList& list, const CallContext& context, Key& key) const;
  bool value_matters(size_t position) const;

  nanobind::object compiler_;
  std::vector<bool> shape_scalars_;
  CallCache cache_;

  // What the last call ran. Most calls are of the same kind as the one before, and are spared the
  // hash and the lock.
  struct Recent {
    Key key;
    CallCache::ProgramPtr program;
    int64_t repeats = 0;
  };
  Recent recent_;
};

}  // namespace fuser_direct
