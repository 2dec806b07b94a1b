#include "binding/dlpack_output.h"

#include <type_traits>
#include <utility>

#include "binding/bind.h"
#include "core/error.h"
#include "cuda/stream_order.h"

namespace nb = nanobind;

namespace fuser_direct {

namespace {

constexpr const char* kVersioned = "dltensor_versioned";
constexpr const char* kLegacy = "dltensor";

template <typename Managed>
struct Export {
  Managed managed{};
  std::shared_ptr<dl::ManagedTensor> tensor;
};

template <typename Managed>
void delete_export(Managed* self) {
  delete static_cast<Export<Managed>*>(self->manager_ctx);
}

// A consumer renames the capsule and frees the tensor itself.
template <typename Managed>
void free_unconsumed(PyObject* capsule, const char* name) {
  if (PyCapsule_IsValid(capsule, name) == 0) return;
  delete_export(static_cast<Managed*>(PyCapsule_GetPointer(capsule, name)));
}

template <typename Managed>
nb::object make_capsule(const DlpackOutput& output, const char* name,
                        PyCapsule_Destructor destructor) {
  auto made = std::make_unique<Export<Managed>>();
  made->tensor = output.tensor;
  made->managed.tensor = output.tensor->tensor;
  made->managed.manager_ctx = made.get();
  made->managed.deleter = delete_export<Managed>;
  if constexpr (std::is_same_v<Managed, dl::ManagedTensor>) {
    made->managed.version = {dl::kMajorVersion, dl::kMinorVersion};
    made->managed.flags = output.tensor->flags;
  }
  nb::object capsule = nb::steal(PyCapsule_New(&made->managed, name, destructor));
  if (!capsule.is_valid()) nb::raise_python_error();
  made.release();  // the capsule's from here on
  return capsule;
}

constexpr int64_t kUnordered = -1;

// What `__dlpack__` is told of the consumer's stream; None is the default one.
int64_t read_stream(nb::handle stream) {
  if (stream.is_none()) return stream_number(nullptr);
  const auto number = nb::cast<int64_t>(stream);
  return number == 0 ? stream_number(nullptr) : number;
}

[[noreturn]] void refuse(const char* why) {
  PyErr_SetString(PyExc_BufferError, why);
  nb::raise_python_error();
}

nb::object dlpack(const DlpackOutput& self, nb::handle stream, nb::handle max_version,
                  nb::handle dl_device, nb::handle copy) {
  const dl::Device device = self.tensor->tensor.device;
  if (copy.ptr() == Py_True) refuse("an output of a fusion is handed over, not copied");
  if (!dl_device.is_none()) {
    const bool is_here = nb::cast<int>(dl_device[0]) == static_cast<int>(device.type) &&
                         nb::cast<int>(dl_device[1]) == device.id;
    if (!is_here) refuse("an output of a fusion is on another device");
  }
  if (device.type == dl::DeviceType::kCuda) {
    const int64_t consumer = read_stream(stream);
    if (consumer != kUnordered && consumer != stream_number(self.stream)) {
      cuda::make_wait(device.id, reinterpret_cast<void*>(consumer), self.stream);
    }
  }
  if (!max_version.is_none() && nb::cast<unsigned>(max_version[0]) >= dl::kMajorVersion) {
    return make_capsule<dl::ManagedTensor>(self, kVersioned, [](PyObject* capsule) {
      free_unconsumed<dl::ManagedTensor>(capsule, kVersioned);
    });
  }
  return make_capsule<dl::LegacyManagedTensor>(self, kLegacy, [](PyObject* capsule) {
    free_unconsumed<dl::LegacyManagedTensor>(capsule, kLegacy);
  });
}

nb::tuple device_tuple(dl::Device device) {
  return nb::make_tuple(static_cast<int>(device.type), device.id);
}

template <typename Class, typename Function>
void def_dlpack(nb::class_<Class>& type, Function function) {
  type.def("__dlpack__", function, nb::kw_only(), nb::arg("stream").none() = nb::none(),
           nb::arg("max_version").none() = nb::none(), nb::arg("dl_device").none() = nb::none(),
           nb::arg("copy").none() = nb::none(),
           nb::sig("def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, "
                   "int] | None = None, dl_device: tuple[int, int] | None = None, copy: bool | "
                   "None = None) -> typing.Any"));
}

}  // namespace

int64_t stream_number(void* stream) {
  constexpr int64_t kDefault = 1;
  return stream == nullptr ? kDefault : reinterpret_cast<int64_t>(stream);
}

CapsuleView view_capsule(const nb::object& capsule) {
  if (PyCapsule_IsValid(capsule.ptr(), kVersioned) != 0) {
    const auto* managed =
        static_cast<const dl::ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), kVersioned));
    if (managed->version.major != dl::kMajorVersion) {
      throw InputError("comes by a DLPack version that isn't known here");
    }
    return {&managed->tensor, managed->flags};
  }
  const auto* managed =
      static_cast<const dl::LegacyManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), kLegacy));
  if (managed == nullptr) nb::raise_python_error();
  return {&managed->tensor, 0};
}

void bind_dlpack_output(nb::module_& m) {
  nb::class_<DlpackOutput> output(m, "DlpackOutput",
                                  "An output of a call, for a library's from_dlpack.");
  def_dlpack(output, &dlpack);
  output.def(
      "__dlpack_device__",
      [](const DlpackOutput& self) { return device_tuple(self.tensor->tensor.device); },
      nb::sig("def __dlpack_device__(self) -> tuple[int, int]"));
  nb::class_<StreamProbe> probe(m, "StreamProbe", "Notes the stream that from_dlpack works on.");
  def_dlpack(
      probe,
      [](StreamProbe& self, nb::handle stream, nb::handle, nb::handle, nb::handle) -> nb::object {
        const int64_t number = read_stream(stream);
        self.stream =
            reinterpret_cast<void*>(number == kUnordered ? stream_number(nullptr) : number);
        self.is_asked = true;
        refuse("there is no tensor: this asks for the stream alone");
      });
  probe.def(
      "__dlpack_device__", [](const StreamProbe& self) { return device_tuple(self.device); },
      nb::sig("def __dlpack_device__(self) -> tuple[int, int]"));
}

}  // namespace fuser_direct
