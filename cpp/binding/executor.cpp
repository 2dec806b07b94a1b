#include "binding/executor.h"

#include <nanobind/stl/shared_ptr.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "core/error.h"
#include "executor/run.h"

namespace nb = nanobind;

namespace fuser_direct {

namespace {

const PythonInterpreter kInterpreter;

// New references that are dropped again unless they are handed over.
class Outputs {
 public:
  explicit Outputs(std::vector<void*>& objects) : objects_(objects) {}
  ~Outputs() {
    for (void* object : objects_) kInterpreter.drop_reference(object);
    objects_.clear();
  }
  Outputs(const Outputs&) = delete;
  Outputs& operator=(const Outputs&) = delete;

  nb::list to_list() {
    nb::list list = nb::steal<nb::list>(PyList_New(static_cast<Py_ssize_t>(objects_.size())));
    if (!list.is_valid()) nb::raise_python_error();
    for (size_t i = 0; i < objects_.size(); ++i) {
      PyList_SetItem(list.ptr(), static_cast<Py_ssize_t>(i), static_cast<PyObject*>(objects_[i]));
    }
    objects_.clear();
    return list;
  }

 private:
  std::vector<void*>& objects_;
};

// All that a call needs memory for.
struct CallState {
  ArgumentList list;
  Key key;
  RunScratch scratch;
  std::vector<void*> outputs;
};

// Lends a state that an earlier call has grown; a call within a call gets another.
class CallStateLoan {
 public:
  CallStateLoan() {
    if (spare().empty()) spare().push_back(std::make_unique<CallState>());
    state_ = std::move(spare().back());
    spare().pop_back();
  }
  ~CallStateLoan() {
    state_->list.clear();
    state_->key.clear();
    spare().push_back(std::move(state_));
  }
  CallStateLoan(const CallStateLoan&) = delete;
  CallStateLoan& operator=(const CallStateLoan&) = delete;

  CallState* operator->() { return state_.get(); }

 private:
  // Guarded by the GIL; never destroyed, since daemon threads may outlive static objects.
  static std::vector<std::unique_ptr<CallState>>& spare() {
    static auto* const states = new std::vector<std::unique_ptr<CallState>>;
    return *states;
  }

  std::unique_ptr<CallState> state_;
};

int64_t device_word(nb::handle device) {
  if (device.is_none()) return -1;
  const long long id = PyLong_AsLongLong(device.ptr());
  if (id == -1 && PyErr_Occurred() != nullptr) nb::raise_python_error();
  return id;
}

}  // namespace

nb::object scalar_value(const Scalar& scalar) {
  switch (scalar.kind) {
    case ScalarKind::kBool:
      return nb::bool_(scalar.integer != 0);
    case ScalarKind::kInt:
      return nb::int_(scalar.integer);
    case ScalarKind::kFloat:
      return nb::float_(scalar.real_or_complex.real());
    case ScalarKind::kComplex:
      break;
  }
  return nb::steal(
      PyComplex_FromDoubles(scalar.real_or_complex.real(), scalar.real_or_complex.imag()));
}

ArgInfo make_arg_info(const Argument& argument) {
  ArgInfo info;
  info.kind = argument.kind;
  info.scalar = argument.scalar;
  const nb::handle type(
      reinterpret_cast<PyObject*>(Py_TYPE(static_cast<PyObject*>(argument.object))));
  info.type_name = nb::str(nb::object(type.attr("__name__"))).c_str();
  if (argument.kind != Argument::Kind::kTensor) return info;
  info.tensor = argument.tensor;
  info.alignment_bytes = argument.tensor.alignment_bytes();
  info.sizes.assign(argument.tensor.sizes, argument.tensor.sizes + argument.tensor.ndim);
  info.strides = canonical_strides(argument.tensor);
  info.tensor.data = nullptr;
  info.tensor.sizes = nullptr;
  info.tensor.strides = nullptr;
  return info;
}

namespace {

thread_local const ArgumentList* list_being_compiled = nullptr;

// Makes a list known to `inputs_being_compiled` for as long as it lives.
class BeingCompiled {
 public:
  explicit BeingCompiled(const ArgumentList& list)
      : former_(std::exchange(list_being_compiled, &list)) {}
  BeingCompiled(const BeingCompiled&) = delete;
  BeingCompiled& operator=(const BeingCompiled&) = delete;
  ~BeingCompiled() { list_being_compiled = former_; }

 private:
  const ArgumentList* former_;
};

}  // namespace

nb::list inputs_being_compiled() {
  nb::list inputs;
  if (list_being_compiled == nullptr) return inputs;
  for (const Argument& argument : list_being_compiled->arguments()) {
    inputs.append(nb::borrow(static_cast<PyObject*>(argument.object)));
  }
  return inputs;
}

Executor::Executor(nb::object compiler, std::vector<int64_t> shape_scalars)
    : compiler_(std::move(compiler)) {
  for (int64_t position : shape_scalars) {
    if (position < 0) throw UsageError("ExecutorCache: shape_scalars must not be negative");
    const auto i = static_cast<size_t>(position);
    if (i >= shape_scalars_.size()) shape_scalars_.resize(i + 1);
    shape_scalars_[i] = true;
  }
}

bool Executor::value_matters(size_t position) const {
  return position < shape_scalars_.size() && shape_scalars_[position];
}

void Executor::make_key(const ArgumentList& list, const CallContext& context, Key& key) const {
  key.push_back(device_word(context.device));
  key.insert(key.end(), context.extra_key.begin(), context.extra_key.end());
  const std::vector<Argument>& arguments = list.arguments();
  key.push_back(static_cast<int64_t>(arguments.size()));
  for (size_t i = 0; i < arguments.size(); ++i) {
    append_argument(arguments[i], value_matters(i), key);
  }
}

std::shared_ptr<Program> Executor::compile(const ArgumentList& list,
                                           const CallContext& context) const {
  nb::list infos;
  for (const Argument& argument : list.arguments()) infos.append(make_arg_info(argument));
  const nb::object extra = context.second.is_valid()
                               ? nb::object(nb::make_tuple(context.extra, context.second))
                               : context.extra;
  const BeingCompiled being_compiled(list);
  const nb::object result = compiler_(infos, context.device, extra);
  std::shared_ptr<Program> program;
  if (!nb::try_cast(result, program) || program == nullptr) {
    throw UsageError("ExecutorCache: the compiler must return a Program, got " +
                     std::string(nb::str(result.type()).c_str()));
  }
  const auto expected = static_cast<int64_t>(list.arguments().size());
  if (program->num_inputs() != expected) {
    throw UsageError("ExecutorCache: the compiler made a program for " +
                     std::to_string(program->num_inputs()) + " inputs from " +
                     std::to_string(expected) + " arguments");
  }
  program->finish();
  return program;
}

CallCache::ProgramPtr Executor::find_or_compile(const ArgumentList& list,
                                                const CallContext& context, const Key& key) {
  if (recent_.program != nullptr && recent_.key == key) {
    ++recent_.repeats;
    return recent_.program;
  }
  CallCache::ProgramPtr program = claim_or_compile(list, context, key);
  recent_.key = key;
  // The former goes last of all: its end may run code that comes here again.
  const CallCache::ProgramPtr former = std::exchange(recent_.program, program);
  return program;
}

CacheCounters Executor::counters() const {
  CacheCounters counts = cache_.counters();
  counts.calls += recent_.repeats;
  counts.hits += recent_.repeats;
  return counts;
}

CallCache::ProgramPtr Executor::claim_or_compile(const ArgumentList& list,
                                                 const CallContext& context, const Key& key) {
  for (bool is_retry = false;; is_retry = true) {
    CallCache::Claim claim = cache_.claim(key, is_retry);
    if (claim.program != nullptr) return std::move(claim.program);
    if (claim.pending != nullptr) {
      if (claim.pending->is_mine()) {
        throw UsageError("ExecutorCache: the compiler ran the very call that it is compiling");
      }
      const nb::gil_scoped_release release;
      claim.pending->wait();
      continue;
    }
    try {
      std::shared_ptr<Program> program = compile(list, context);
      cache_.fulfil(key, program);
      return program;
    } catch (...) {
      cache_.abandon(key);
      throw;
    }
  }
}

nb::list Executor::execute(nb::handle inputs, const CallContext& context) {
  CallStateLoan state;
  state->list.read(inputs.ptr());
  make_key(state->list, context, state->key);
  const CallCache::ProgramPtr program = find_or_compile(state->list, context, state->key);
  const Framework& framework = state->list.output_framework(program->device().type);
  Outputs outputs(state->outputs);
  run_program(*program, state->list.arguments(), framework, kInterpreter, state->scratch,
              state->outputs);
  return outputs.to_list();
}

void Executor::prepare(nb::handle inputs, const CallContext& context) {
  CallStateLoan state;
  state->list.read(inputs.ptr());
  make_key(state->list, context, state->key);
  find_or_compile(state->list, context, state->key);
}

CallCache::ProgramPtr Executor::lookup(nb::handle inputs, const CallContext& context) const {
  CallStateLoan state;
  state->list.read(inputs.ptr());
  make_key(state->list, context, state->key);
  return cache_.find(state->key);
}

std::pair<double, double> Executor::time_lookup(nb::handle inputs, int64_t rounds) const {
  if (rounds < 1) throw UsageError("time_lookup: rounds must be 1 or more");
  using Clock = std::chrono::steady_clock;
  const CallContext context{nb::none(), {}, {}, {}};
  const auto mean_ns = [rounds](Clock::time_point start) {
    const std::chrono::duration<double, std::nano> elapsed = Clock::now() - start;
    return elapsed.count() / static_cast<double>(rounds);
  };
  CallStateLoan state;
  const Clock::time_point read_start = Clock::now();
  for (int64_t i = 0; i < rounds; ++i) {
    state->list.clear();
    state->list.read(inputs.ptr());
  }
  const double read_ns = mean_ns(read_start);
  const Clock::time_point key_start = Clock::now();
  for (int64_t i = 0; i < rounds; ++i) {
    state->key.clear();
    make_key(state->list, context, state->key);
    if (recent_.program == nullptr || recent_.key != state->key) cache_.find(state->key);
  }
  return {read_ns, mean_ns(key_start)};
}

void Executor::clear() {
  const nb::object compiler = std::exchange(compiler_, nb::none());
  const std::vector<CallCache::ProgramPtr> programs = cache_.clear();
  const CallCache::ProgramPtr recent = std::exchange(recent_.program, nullptr);
}

}  // namespace fuser_direct
