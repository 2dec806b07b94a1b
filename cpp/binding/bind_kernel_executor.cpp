// Python's view of manual execution: LaunchParams, CompileParams and KernelExecutor.
#include <nanobind/nanobind.h>
#include <nanobind/operators.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "binding/bind.h"
#include "binding/executor.h"
#include "core/error.h"
#include "executor/launch_params.h"

namespace nb = nanobind;

namespace fuser_direct {

namespace {

// How kernels are to be built. index_type is DataType.Int, DataType.Int32 or None.
struct CompileParams {
  nb::object index_type = nb::none();
  int64_t maxrregcount = 255;
  bool enable_magic_zero = true;
  bool enable_ptxas_verbose = false;
  nb::object device = nb::none();
  std::vector<std::string> include_paths;
};

bool operator==(const CompileParams& a, const CompileParams& b) {
  return a.index_type.equal(b.index_type) && a.maxrregcount == b.maxrregcount &&
         a.enable_magic_zero == b.enable_magic_zero &&
         a.enable_ptxas_verbose == b.enable_ptxas_verbose && a.device.equal(b.device) &&
         a.include_paths == b.include_paths;
}

std::string text_or_not_set(const nb::object& object) {
  return object.is_none() ? "NotSet" : nb::str(object).c_str();
}

std::string to_string(const CompileParams& params) {
  std::string text = "Compile Parameters: index_type = " + text_or_not_set(params.index_type);
  text += ", maxrregcount = " + std::to_string(params.maxrregcount);
  text += ", enable_magic_zero = " + std::to_string(int{params.enable_magic_zero});
  text += ", enable_ptxas_verbose = " + std::to_string(int{params.enable_ptxas_verbose});
  text += ", device = " + text_or_not_set(params.device) + ", include_paths = [";
  for (size_t i = 0; i < params.include_paths.size(); ++i) {
    text += (i > 0 ? ", " : "") + params.include_paths[i];
  }
  return text + "]\n";
}

// One fusion, compiled as its caller has scheduled it.
class KernelExecutor {
 public:
  void compile(nb::object fusion, nb::handle args, const std::optional<LaunchParams>& constraints,
               const std::optional<CompileParams>& params, nb::object scheduler_type) {
    set_executor(make_executor(fusion, params, scheduler_type), params);
    fusion_ = std::move(fusion);
    scheduler_type_ = std::move(scheduler_type);
    if (nb::len(args) > 0) executor_->prepare(args, context(constraints));
  }

  nb::list run(nb::handle args, const std::optional<LaunchParams>& constraints,
               const std::optional<CompileParams>& params) {
    if (executor_ == nullptr) {
      throw UsageError("KernelExecutor.run: there is nothing to run; call compile(fusion) first");
    }
    // Given other parameters than before, the kernels are built anew.
    if (params && !(*params == params_)) {
      set_executor(make_executor(fusion_, params, scheduler_type_), params);
    }
    const std::shared_ptr<Executor> executor = executor_;  // lives through the run
    return executor->execute(args, context(constraints));
  }

  bool is_compiled() const { return executor_ != nullptr; }

  bool has_early_launches() const {
    const CallCache::ProgramPtr program = executor_ == nullptr ? nullptr : executor_->most_recent();
    return program != nullptr && program->has_early_launches();
  }

  // The objects that a garbage collector has to know of.
  std::vector<nb::handle> referents() const {
    std::vector<nb::handle> all{fusion_, scheduler_type_, params_.index_type, params_.device};
    if (executor_ != nullptr) all.push_back(executor_->compiler());
    return all;
  }

  void clear() {
    if (executor_ != nullptr) executor_->clear();
    const nb::object fusion = std::exchange(fusion_, nb::none());
    const nb::object scheduler_type = std::exchange(scheduler_type_, nb::none());
  }

 private:
  static std::shared_ptr<Executor> make_executor(const nb::object& fusion,
                                                 const std::optional<CompileParams>& params,
                                                 const nb::object& scheduler_type) {
    const nb::object make =
        nb::module_::import_("fuser_direct.compiler.manual").attr("make_compiler");
    // Inputs that sizes depend on belong to a call's key by their values.
    auto [compiler, shape_scalars] =
        nb::cast<std::pair<nb::object, std::vector<int64_t>>>(make(fusion, params, scheduler_type));
    return std::make_shared<Executor>(std::move(compiler), std::move(shape_scalars));
  }

  void set_executor(std::shared_ptr<Executor> executor,
                    const std::optional<CompileParams>& params) {
    executor_ = std::move(executor);
    params_ = params.value_or(CompileParams{});
  }

  static CallContext context(const std::optional<LaunchParams>& constraints) {
    CallContext context{Py_None, nb::cast(constraints), {}, {}};
    if (constraints) {
      context.extra_key.assign(constraints->dims.begin(), constraints->dims.end());
      context.extra_key.push_back(constraints->smem_bytes);
    }
    return context;
  }

  std::shared_ptr<Executor> executor_;
  CompileParams params_;
  nb::object fusion_ = nb::none();
  nb::object scheduler_type_ = nb::none();
};

int visit(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  for (nb::handle object : nb::inst_ptr<KernelExecutor>(self)->referents()) Py_VISIT(object.ptr());
  return 0;
}

int clear(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<KernelExecutor>(self)->clear();
  return 0;
}

PyType_Slot kGarbageCollection[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(visit)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {0, nullptr},
};

void bind_launch_params(nb::module_& m) {
  nb::class_<LaunchParams> type(
      m, "LaunchParams",
      "Launch constraints: grid and block extents, and bytes of dynamic shared memory. Plain data; "
      "limits are checked at launch.");
  type.def(nb::init<>())
      .def(
          "__init__",
          [](LaunchParams* self, int64_t gx, int64_t gy, int64_t gz, int64_t bx, int64_t by,
             int64_t bz) { new (self) LaunchParams{{gx, gy, gz, bx, by, bz}, 0}; },
          nb::arg("gdimx"), nb::arg("gdimy"), nb::arg("gdimz"), nb::arg("bdimx"), nb::arg("bdimy"),
          nb::arg("bdimz"), "-1 leaves an extent unset.")
      .def_rw("smem", &LaunchParams::smem_bytes, "Bytes of dynamic shared memory.")
      .def_prop_ro(
          "unset",
          [](const LaunchParams& self) {
            nb::list names;
            const char* const kNames[] = {"gdimx", "gdimy", "gdimz", "bdimx", "bdimy", "bdimz"};
            for (size_t d = 0; d < self.dims.size(); ++d) {
              if (self.dims[d] == LaunchParams::kUnset) names.append(kNames[d]);
            }
            return nb::tuple(names);
          },
          nb::sig("def unset(self, /) -> tuple[str, ...]"), "Names of the extents left open.")
      .def(
          "__eq__",
          [](const LaunchParams& self, nb::handle other) {
            LaunchParams* params = nullptr;
            return nb::try_cast(other, params) && params != nullptr && self == *params;
          },
          nb::arg("other").none())
      .def("__hash__",
           [](const LaunchParams& self) { return nb::hash(nb::str(self.to_string().c_str())); })
      .def("__repr__", &LaunchParams::to_string);
  const std::pair<const char*, LaunchParams::Dim> kDims[] = {
      {"gdimx", LaunchParams::kGridX},  {"gdimy", LaunchParams::kGridY},
      {"gdimz", LaunchParams::kGridZ},  {"bdimx", LaunchParams::kBlockX},
      {"bdimy", LaunchParams::kBlockY}, {"bdimz", LaunchParams::kBlockZ},
  };
  for (const auto& [name, dim] : kDims) {
    type.def_prop_rw(
        name, [dim = dim](const LaunchParams& self) { return self.extent(dim); },
        [dim = dim](LaunchParams& self, int64_t value) { self.dims[dim] = value; });
  }
}

void bind_compile_params(nb::module_& m) {
  nb::class_<CompileParams>(m, "CompileParams", "How kernels are to be built; plain data.")
      .def(
          "__init__",
          [](CompileParams* self, nb::object index_type, int64_t maxrregcount, bool magic_zero,
             bool verbose, nb::object device, std::vector<std::string> include_paths) {
            new (self) CompileParams{
                std::move(index_type),   maxrregcount, magic_zero, verbose, std::move(device),
                std::move(include_paths)};
          },
          nb::kw_only(), nb::arg("index_type") = nb::none(), nb::arg("maxrregcount") = 255,
          nb::arg("enable_magic_zero") = true, nb::arg("enable_ptxas_verbose") = false,
          nb::arg("device") = nb::none(), nb::arg("include_paths") = std::vector<std::string>(),
          nb::sig("def __init__(self, *, index_type: fuser_direct.enums.DataType | None = None, "
                  "maxrregcount: int = 255, enable_magic_zero: bool = True, enable_ptxas_verbose: "
                  "bool = False, device: typing.Any = None, include_paths: "
                  "collections.abc.Sequence[str] = []) -> None"))
      .def_prop_rw(
          "index_type", [](const CompileParams& self) { return self.index_type; },
          [](CompileParams& self, nb::object value) { self.index_type = std::move(value); },
          nb::for_getter(nb::sig("def index_type(self, /) -> fuser_direct.enums.DataType | None")),
          nb::for_setter(nb::sig(
              "def index_type(self, value: fuser_direct.enums.DataType | None, /) -> None")),
          nb::for_setter(nb::arg("value").none()))
      .def_rw("maxrregcount", &CompileParams::maxrregcount)
      .def_rw("enable_magic_zero", &CompileParams::enable_magic_zero)
      .def_rw("enable_ptxas_verbose", &CompileParams::enable_ptxas_verbose)
      .def_prop_rw(
          "device", [](const CompileParams& self) { return self.device; },
          [](CompileParams& self, nb::object value) { self.device = std::move(value); },
          nb::for_getter(nb::sig("def device(self, /) -> typing.Any")),
          nb::for_setter(nb::sig("def device(self, value: typing.Any, /) -> None")),
          nb::for_setter(nb::arg("value").none()))
      .def_rw("include_paths", &CompileParams::include_paths)
      .def(
          "__eq__",
          [](const CompileParams& self, nb::handle other) {
            CompileParams* params = nullptr;
            return nb::try_cast(other, params) && params != nullptr && self == *params;
          },
          nb::arg("other").none())
      .def("__repr__", &to_string);
}

void bind_executor_class(nb::module_& m) {
  // A leaf module, so this import touches nothing else.
  const nb::object no_scheduler =
      nb::module_::import_("fuser_direct.enums").attr("SchedulerType").attr("none");
  nb::class_<KernelExecutor>(m, "KernelExecutor", nb::type_slots(kGarbageCollection),
                             "Compiles and runs one fusion as its caller has scheduled it.")
      .def(
          "__init__",
          [](KernelExecutor* self, int64_t, int64_t, int64_t, int64_t) {
            new (self) KernelExecutor;
          },
          nb::arg("fusion_id") = 0, nb::arg("concrete_id") = 0, nb::arg("runtime_id") = 0,
          nb::arg("group_id") = 0)
      .def("compile", &KernelExecutor::compile, nb::arg("fusion"),
           nb::arg("args") = nb::make_tuple(), nb::arg("launch_constraints").none() = nb::none(),
           nb::arg("compile_params").none() = nb::none(), nb::arg("scheduler_type") = no_scheduler,
           nb::sig("def compile(self, fusion: typing.Any, args: "
                   "collections.abc.Sequence[typing.Any] = (), launch_constraints: LaunchParams | "
                   "None = None, compile_params: CompileParams | None = None, scheduler_type: "
                   "fuser_direct.enums.SchedulerType = fuser_direct.enums.SchedulerType.none) -> "
                   "None"),
           "Make the fusion ready to run; with args given, build its kernels for such args now.")
      .def("run", &KernelExecutor::run, nb::arg("args"),
           nb::arg("launch_constraints").none() = nb::none(),
           nb::arg("compile_params").none() = nb::none(),
           nb::sig("def run(self, args: collections.abc.Sequence[typing.Any], launch_constraints: "
                   "LaunchParams | None = None, compile_params: CompileParams | None = None) -> "
                   "list[typing.Any]"),
           "Run on tensors and scalars; returns the outputs.")
      .def("is_compiled", &KernelExecutor::is_compiled)
      .def("is_programmatic_dependent_launch_enabled", &KernelExecutor::has_early_launches,
           "Whether a kernel of the call that was compiled or run last begins while the one before "
           "it still runs; never before one is built, nor with FUSER_DIRECT_EARLY_LAUNCH=0.");
}

}  // namespace

void bind_kernel_executor(nb::module_& m) {
  bind_launch_params(m);
  bind_compile_params(m);
  bind_executor_class(m);
}

}  // namespace fuser_direct
