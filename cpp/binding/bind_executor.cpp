// Python's view of the executor: ArgInfo and ExecutorCache.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "binding/bind.h"
#include "binding/executor.h"
#include "core/error.h"

namespace nb = nanobind;

namespace fuser_direct {

namespace {

const char* kind_name(ScalarKind kind) {
  switch (kind) {
    case ScalarKind::kBool:
      return "bool";
    case ScalarKind::kInt:
      return "int";
    case ScalarKind::kFloat:
      return "float";
    case ScalarKind::kComplex:
      break;
  }
  return "complex";
}

void require_tensor(const ArgInfo& info) {
  if (info.kind != Argument::Kind::kTensor) {
    throw UsageError("ArgInfo: only a tensor has this attribute; look at is_tensor first");
  }
}

void require_scalar(const ArgInfo& info) {
  if (info.kind != Argument::Kind::kScalar) {
    throw UsageError("ArgInfo: only a scalar has this attribute; look at kind first");
  }
}

nb::tuple to_tuple(const std::vector<int64_t>& values) {
  nb::list list;
  for (int64_t value : values) list.append(value);
  return nb::tuple(list);
}

// A tensor's attribute.
template <typename Getter>
auto of_tensor(Getter getter) {
  return [getter](const ArgInfo& info) {
    require_tensor(info);
    return getter(info);
  };
}

std::string describe(const ArgInfo& info) {
  if (info.kind == Argument::Kind::kOther) return "<ArgInfo " + info.type_name + ">";
  if (info.kind == Argument::Kind::kScalar) {
    return std::string("<ArgInfo ") + kind_name(info.scalar.kind) + " " +
           nb::str(scalar_value(info.scalar)).c_str() + ">";
  }
  const auto ndim = info.tensor.ndim;
  return "<ArgInfo tensor type=(" + std::to_string(static_cast<int>(info.tensor.dtype.code)) +
         ", " + std::to_string(info.tensor.dtype.bits) + ") device=(" +
         std::to_string(static_cast<int>(info.tensor.device.type)) + ", " +
         std::to_string(info.tensor.device.id) + ") shape=" + dims_text(info.sizes.data(), ndim) +
         " strides=" + dims_text(info.strides.data(), ndim) + ">";
}

void bind_arg_info(nb::module_& m) {
  nb::class_<ArgInfo>(m, "ArgInfo", "What a compiler is told of one argument of a call.")
      .def_prop_ro("is_tensor",
                   [](const ArgInfo& info) { return info.kind == Argument::Kind::kTensor; })
      .def_prop_ro("dtype", of_tensor([](const ArgInfo& info) {
                     return nb::make_tuple(static_cast<int>(info.tensor.dtype.code),
                                           static_cast<int>(info.tensor.dtype.bits));
                   }),
                   nb::sig("def dtype(self, /) -> tuple[int, int]"), "DLPack type code and bits.")
      .def_prop_ro("device_type", of_tensor([](const ArgInfo& info) {
                     return static_cast<int>(info.tensor.device.type);
                   }),
                   "1 CPU, 2 CUDA; others as in DLPack.")
      .def_prop_ro("device_id",
                   of_tensor([](const ArgInfo& info) { return info.tensor.device.id; }))
      .def_prop_ro("shape", of_tensor([](const ArgInfo& info) { return to_tuple(info.sizes); }),
                   nb::sig("def shape(self, /) -> tuple[int, ...]"))
      .def_prop_ro("strides", of_tensor([](const ArgInfo& info) { return to_tuple(info.strides); }),
                   nb::sig("def strides(self, /) -> tuple[int, ...]"),
                   "In elements. Where one moves nothing (a dim of size 1, an empty tensor) it is "
                   "size times stride of the next dim, whatever the tensor says.")
      .def_prop_ro(
          "alignment", of_tensor([](const ArgInfo& info) { return info.alignment_bytes; }),
          "Bytes: on a GPU the largest power of two up to 64 that divides the address; on a "
          "CPU the alignment of an element, whatever the address.")
      .def_prop_ro("is_read_only",
                   of_tensor([](const ArgInfo& info) { return info.tensor.is_read_only; }))
      .def_prop_ro(
          "kind",
          [](const ArgInfo& info) {
            return info.kind == Argument::Kind::kScalar ? kind_name(info.scalar.kind) : "";
          },
          "bool, int, float or complex; empty for what is no scalar.")
      .def_prop_ro(
          "value",
          [](const ArgInfo& info) {
            require_scalar(info);
            return scalar_value(info.scalar);
          },
          nb::sig("def value(self, /) -> bool | int | float | complex"))
      .def_prop_ro(
          "type_name", [](const ArgInfo& info) { return info.type_name; },
          "Name of the argument's Python type.")
      .def("__repr__", &describe);
}

// ---- ExecutorCache ----

void append_options(nb::handle options, Key& key) {
  nb::list texts(nb::borrow(options));
  key.push_back(static_cast<int64_t>(nb::len(texts)));
  for (nb::handle text : texts) append_text(nb::str(text).c_str(), key);
}

bool is_empty_list(nb::handle object) {
  return PyList_Check(object.ptr()) && PyList_Size(object.ptr()) == 0;
}

nb::list execute(Executor& self, nb::handle inputs, nb::handle device, nb::handle enable,
                 nb::handle disable) {
  CallContext context{device, nb::borrow(enable), disable, {}};
  if (!is_empty_list(enable) || !is_empty_list(disable)) {
    append_options(enable, context.extra_key);
    append_options(disable, context.extra_key);
  }
  return self.execute(inputs, context);
}

std::shared_ptr<Program> without_const(CallCache::ProgramPtr program) {
  // Python has no const; a finished program refuses every change itself.
  return std::const_pointer_cast<Program>(std::move(program));
}

int visit(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  const nb::handle compiler = nb::inst_ptr<Executor>(self)->compiler();
  Py_VISIT(compiler.ptr());
  return 0;
}

int clear(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<Executor>(self)->clear();
  return 0;
}

PyType_Slot kGarbageCollection[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(visit)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {0, nullptr},
};

nb::dict counters(const Executor& self) {
  const CacheCounters counts = self.counters();
  nb::dict result;
  result["calls"] = counts.calls;
  result["hits"] = counts.hits;
  result["misses"] = counts.misses;
  return result;
}

void bind_cache(nb::module_& m) {
  m.def("inputs_being_compiled", &inputs_being_compiled,
        nb::sig("def inputs_being_compiled() -> list[Any]"),
        "The arguments of the call that this thread is compiling a program for; [] outside of "
        "compiling.");
  nb::class_<Executor>(m, "ExecutorCache", nb::type_slots(kGarbageCollection),
                       "Runs the programs that `compiler(args, device, (enable_options, "
                       "disable_options))` makes, one for each kind of call.")
      .def(nb::init<nb::object, std::vector<int64_t>>(), nb::arg("compiler"),
           nb::arg("shape_scalars"),
           nb::sig("def __init__(self, compiler: collections.abc.Callable[[list[ArgInfo], int | "
                   "None, typing.Any], Program], shape_scalars: "
                   "collections.abc.Sequence[int]) -> None"))
      .def("execute", &execute, nb::arg("inputs"), nb::kw_only(), nb::arg("device") = nb::none(),
           nb::arg("_enable_options") = nb::list(), nb::arg("_disable_options") = nb::list(),
           nb::sig("def execute(self, inputs: collections.abc.Iterable[typing.Any], *, device: int "
                   "| None = None, _enable_options: collections.abc.Sequence[str] = [], "
                   "_disable_options: collections.abc.Sequence[str] = []) -> list[typing.Any]"),
           "Run the fusion on tensors and scalars; list and tuple elements are flattened.")
      .def(
          "lookup",
          [](const Executor& self, nb::handle inputs, nb::handle device) {
            return without_const(self.lookup(inputs, CallContext{device, {}, {}, {}}));
          },
          nb::arg("inputs"), nb::arg("device") = nb::none(),
          nb::sig("def lookup(self, inputs: collections.abc.Iterable[typing.Any], device: int | "
                  "None = None) -> Program | None"),
          "The program for such inputs, or None; compiles nothing.")
      .def_prop_ro(
          "most_recent", [](const Executor& self) { return without_const(self.most_recent()); },
          nb::sig("def most_recent(self, /) -> Program | None"), "The program that ran last.")
      .def("time_lookup", &Executor::time_lookup, nb::arg("inputs"), nb::arg("rounds"),
           nb::sig("def time_lookup(self, inputs: collections.abc.Sequence[typing.Any], rounds: "
                   "int) -> tuple[float, float]"),
           "Mean nanoseconds of reading `inputs`, and of making and finding their key, for "
           "benchmarks.")
      .def("counters", &counters, nb::sig("def counters(self) -> dict[str, int]"),
           "calls, hits and misses so far.");
}

// ---- DefinitionCall ----

// What stands for a definition's `execute` once its executor exists: a plain call goes straight to
// the executor, with no Python frame between; a call with options goes to `general`.
class DefinitionCall {
 public:
  DefinitionCall(nb::object cache, nb::object general)
      : cache_(std::move(cache)),
        general_(std::move(general)),
        executor_(&nb::cast<Executor&>(cache_)),  // refuses anything else
        no_options_(nb::make_tuple()) {}

  nb::object general() const { return general_; }

  // A builtin function that calls through `self`. Python calls one without building a tuple, and
  // nanobind's dispatch, which would take about as long as the call's own work, is left out.
  static nb::object function(nb::handle self) {
    static PyMethodDef definition = {
        "execute",
        reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&DefinitionCall::call)),
        METH_FASTCALL | METH_KEYWORDS,
        "execute($self, inputs, /, **options)\n--\n\nRun the fusion on tensors and scalars; "
        "options as of FusionDefinition.execute."};
    return nb::steal(PyCFunction_NewEx(&definition, self.ptr(), nullptr));
  }

  // Whether all calls go to `general`, so that a profiler sees them.
  static inline bool is_general_only = false;

  static int visit(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (!nb::inst_ready(self)) return 0;
    const auto* call = nb::inst_ptr<DefinitionCall>(self);
    Py_VISIT(call->cache_.ptr());
    Py_VISIT(call->general_.ptr());
    return 0;
  }

  static int clear(PyObject* self) {
    if (!nb::inst_ready(self)) return 0;
    auto* call = nb::inst_ptr<DefinitionCall>(self);
    const nb::object general = std::exchange(call->general_, nb::none());
    return 0;
  }

 private:
  static PyObject* call(PyObject* self, PyObject* const* args, Py_ssize_t count,
                        PyObject* names) noexcept {
    try {
      const auto* call = nb::inst_ptr<DefinitionCall>(self);
      if (count != 1 || names != nullptr || is_general_only) {
        return call->call_general(args, count, names).release().ptr();
      }
      const CallContext context{Py_None, call->no_options_, call->no_options_, {}};
      return call->executor_->execute(args[0], context).release().ptr();
    } catch (...) {
      set_python_error();
      return nullptr;
    }
  }

  nb::object call_general(PyObject* const* args, Py_ssize_t count, PyObject* names) const {
    nb::list positional;
    for (Py_ssize_t i = 0; i < count; ++i) positional.append(nb::handle(args[i]));
    nb::dict named;
    const Py_ssize_t name_count = names == nullptr ? 0 : PyTuple_Size(names);
    for (Py_ssize_t i = 0; i < name_count; ++i) {
      named[nb::handle(PyTuple_GetItem(names, i))] = nb::handle(args[count + i]);
    }
    return general_(*positional, **named);
  }

  nb::object cache_;
  nb::object general_;
  Executor* executor_;  // of cache_
  nb::tuple no_options_;
};

PyType_Slot kCallCollection[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(DefinitionCall::visit)},
    {Py_tp_clear, reinterpret_cast<void*>(DefinitionCall::clear)},
    {0, nullptr},
};

void bind_definition_call(nb::module_& m) {
  nb::class_<DefinitionCall>(m, "DefinitionCall", nb::type_slots(kCallCollection),
                             "Calls an executor directly, or `general` if given options.")
      .def(nb::init<nb::object, nb::object>(), nb::arg("cache"), nb::arg("general"),
           nb::sig("def __init__(self, cache: ExecutorCache, general: "
                   "collections.abc.Callable[..., list[typing.Any]]) -> None"))
      .def_prop_ro("general", &DefinitionCall::general,
                   nb::sig("def general(self) -> collections.abc.Callable[..., "
                           "list[typing.Any]]"),
                   "What calls with options go to.")
      .def_prop_ro("function", &DefinitionCall::function,
                   nb::sig("def function(self) -> collections.abc.Callable[..., "
                           "list[typing.Any]]"),
                   "The call itself: a builtin function of inputs and options.")
      .def_static(
          "send_to_general", [](bool is_on) { DefinitionCall::is_general_only = is_on; },
          nb::arg("is_on"), "Whether plain calls too go to `general`, from now on.");
}

}  // namespace

void bind_executor(nb::module_& m) {
  bind_arg_info(m);
  bind_cache(m);
  bind_definition_call(m);
}

}  // namespace fuser_direct
