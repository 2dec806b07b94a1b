#include "executor/run.h"

#include <cstring>
#include <string>
#include <utility>

#include "core/error.h"
#include "cpu/strided_copy.h"
#include "executor/in_place.h"

namespace fuser_direct {

namespace {

class Run {
 public:
  Run(const Program& program, const std::vector<Argument>& arguments, const Framework& framework,
      const Interpreter& interpreter, RunScratch& scratch)
      : program_(program),
        arguments_(arguments),
        framework_(framework),
        interpreter_(interpreter),
        scratch_(scratch) {
    scratch_.slots.assign(program.buffers().size(), Slot{});
  }
  // Frees what an error left behind.
  ~Run() {
    for (Slot& slot : scratch_.slots) framework_.release(slot);
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  void execute() {
    for (const Step& step : program_.steps()) {
      for (int64_t number : step.allocate) allocate(number);
      std::visit([this](const auto& action) { issue(action); }, step.action);
      for (int64_t number : step.release) framework_.release(slot(number));
    }
    for (int64_t number : program_.outputs_without_step()) allocate(number);
  }

  void collect(std::vector<void*>& outputs) {
    for (const Output& output : program_.outputs()) {
      if (output.kind == Output::Kind::kView) {
        const ViewSpec& spec = program_.views()[static_cast<size_t>(output.index)];
        const Framework& library =
            is_input(spec.base) ? *argument(spec.base).framework : framework_;
        outputs.push_back(library.view(object(spec.base), tensor(spec.base), spec));
        continue;
      }
      void* made = object(output.index);
      interpreter_.add_reference(made);
      outputs.push_back(made);
    }
    if (framework_.adopts()) adopt(outputs);
  }

 private:
  // Last of all: views are of the memory that was computed, not of what the library makes of it.
  void adopt(std::vector<void*>& outputs) {
    const std::vector<Output>& specs = program_.outputs();
    const auto is_made = [&](size_t i) {
      return specs[i].kind != Output::Kind::kView && !is_input(specs[i].index);
    };
    for (size_t i = 0; i < specs.size(); ++i) {
      if (!is_made(i)) continue;
      size_t first = 0;
      while (!is_made(first) || specs[first].index != specs[i].index) ++first;
      void* adopted = outputs[first];
      if (first == i) {
        adopted = framework_.adopt(outputs[i]);
      } else {
        interpreter_.add_reference(adopted);
      }
      interpreter_.drop_reference(std::exchange(outputs[i], adopted));
    }
  }

  Slot& slot(int64_t number) {
    return scratch_.slots[static_cast<size_t>(number - program_.num_inputs())];
  }

  const Argument& argument(int64_t number) const { return arguments_[static_cast<size_t>(number)]; }

  bool is_input(int64_t number) const { return number < program_.num_inputs(); }

  void allocate(int64_t number) {
    framework_.allocate(program_.buffer(number), program_.device(), slot(number));
  }

  // A buffer as a tensor.
  TensorArg tensor(int64_t number) {
    if (is_input(number)) return argument(number).tensor;
    const BufferSpec& spec = program_.buffer(number);
    TensorArg result;
    result.data = slot(number).data;
    result.device = program_.device();
    result.dtype = spec.dtype;
    result.ndim = static_cast<int32_t>(spec.sizes.size());
    result.sizes = spec.sizes.data();
    result.strides = spec.strides.data();
    return result;
  }

  int64_t pointer(const KernelArg& arg) {
    const bool of_input = is_input(arg.index);
    char* data = of_input ? argument(arg.index).tensor.data : slot(arg.index).data;
    const dl::DataType dtype =
        of_input ? argument(arg.index).tensor.dtype : program_.buffer(arg.index).dtype;
    return reinterpret_cast<int64_t>(data + arg.offset_elems * dtype.itemsize());
  }

  // Fills scratch_.packed with the launch's arguments.
  void pack(const KernelArgs& args) {
    scratch_.packed.assign(args.packed.begin(), args.packed.end());
    int64_t* packed = scratch_.packed.data();
    for (const KernelArg& arg : args.dynamic) {
      int64_t* target = packed + arg.slot;
      if (arg.source == KernelArg::Source::kPointer) {
        *target = pointer(arg);
        continue;
      }
      const Argument& input = argument(arg.index);
      const bool is_item = arg.source == KernelArg::Source::kItem;
      const PackedScalar value =
          pack_scalar(is_item ? read_item(input.tensor) : input.scalar, arg.type);
      std::memcpy(target, value.data(), sizeof(int64_t) * static_cast<size_t>(slots_of(arg.type)));
    }
  }

  void issue(const CudaStep& step) {
    if (step.launch->is_empty()) return;
    if (!has_stream_) stream_ = framework_.current_stream(program_.device());
    has_stream_ = true;
    pack(step.args);
    const std::vector<int64_t>& slots = step.args.slots;
    scratch_.params.resize(slots.size());
    int64_t* packed = scratch_.packed.data();
    for (size_t i = 0; i < slots.size(); ++i) scratch_.params[i] = packed + slots[i];
    step.launch->queue(scratch_.params.data(), stream_);
  }

  void issue(const CpuStep& step) {
    if (step.work.items == 0) return;
    pack(step.args);
    if (!cpu::is_long(step.work)) {
      cpu::run(step.kernel->function, scratch_.packed.data(), step.work);
      return;
    }
    void* state = interpreter_.release_lock();
    cpu::run(step.kernel->function, scratch_.packed.data(), step.work);
    interpreter_.acquire_lock(state);
  }

  void issue(const CopyStep& step) { cpu::strided_copy(tensor(step.dst), tensor(step.src)); }

  void issue(const PythonStep& step) {
    std::vector<void*> inputs;
    for (int64_t number : step.ins) inputs.push_back(object(number));
    std::vector<const BufferSpec*> specs;
    for (int64_t number : step.outs) specs.push_back(&program_.buffer(number));
    std::vector<Slot> made(step.outs.size());
    step.function->call(inputs, specs, program_.device(), made.data());
    for (size_t i = 0; i < made.size(); ++i) slot(step.outs[i]) = made[i];
    for (const Slot& one : made) framework_.wait_for(one.object, program_.device());
  }

  // A borrowed reference to the Python object of a buffer; an allocation is wrapped and stays ours.
  void* object(int64_t number) {
    if (is_input(number)) return argument(number).object;
    Slot& buffer = slot(number);
    if (buffer.object == nullptr) {
      char* data = buffer.data;
      void* wrapped = framework_.wrap(program_.buffer(number), buffer);
      buffer = Slot{data, nullptr, wrapped};
    }
    return buffer.object;
  }

  const Program& program_;
  const std::vector<Argument>& arguments_;
  const Framework& framework_;
  const Interpreter& interpreter_;
  RunScratch& scratch_;
  bool has_stream_ = false;
  void* stream_ = nullptr;
};

}  // namespace

void run_program(const Program& program, const std::vector<Argument>& arguments,
                 const Framework& framework, const Interpreter& interpreter, RunScratch& scratch,
                 std::vector<void*>& outputs) {
  if (static_cast<int64_t>(arguments.size()) != program.num_inputs()) {
    throw UsageError("a program for " + std::to_string(program.num_inputs()) + " inputs got " +
                     std::to_string(arguments.size()));
  }
  check_written_inputs(program.written_inputs(), arguments);
  Run run(program, arguments, framework, interpreter, scratch);
  run.execute();
  run.collect(outputs);
}

}  // namespace fuser_direct
