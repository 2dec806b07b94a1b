#include "binding/framework.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <unordered_map>
#include <utility>

#include "cpu/block_pool.h"

namespace nb = nanobind;

namespace fuser_direct {

namespace {

// Types remembered at most; a program that makes tensor types without end is served all the same.
constexpr size_t kMaxTypes = 1024;

bool is_subclass_of_imported(PyTypeObject* type, const char* module, const char* name) {
  const nb::object base = imported_attribute(module, name);
  return base.is_valid() && PyType_Check(base.ptr()) &&
         PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(base.ptr())) != 0;
}

// The function table of a type, in a version that is understood here; null without one.
const dl::ExchangeApi* exchange_api_of(PyTypeObject* type) {
  constexpr const char* kCapsule = "dlpack_exchange_api";
  const nb::object capsule = nb::steal(
      PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__"));
  if (!capsule.is_valid()) {
    PyErr_Clear();
    return nullptr;
  }
  if (PyCapsule_IsValid(capsule.ptr(), kCapsule) == 0) return nullptr;
  auto* header = static_cast<dl::ExchangeApiHeader*>(PyCapsule_GetPointer(capsule.ptr(), kCapsule));
  while (header != nullptr && header->version.major != dl::kMajorVersion) {
    header = header->previous;
  }
  auto* api = reinterpret_cast<const dl::ExchangeApi*>(header);
  return api != nullptr && api->borrow != nullptr ? api : nullptr;
}

// A masked array's mask would be lost without a word.
bool is_masked_array(PyTypeObject* type) {
  return is_subclass_of_imported(type, "numpy.ma", "MaskedArray");
}

const TensorLibrary* resolve(PyTypeObject* type, PyObject* instance) {
  const bool is_torch = is_subclass_of_imported(type, "torch", "Tensor");
  if (const dl::ExchangeApi* api = exchange_api_of(type)) return &exchange_library(api, is_torch);
  if (is_torch) return &torch_library();
  if (is_subclass_of_imported(type, "numpy", "ndarray")) {
    return is_masked_array(type) ? nullptr : &numpy_library();
  }
  auto* object = reinterpret_cast<PyObject*>(type);
  const bool is_producer = PyObject_HasAttrString(object, "__dlpack__") != 0 &&
                           PyObject_HasAttrString(object, "__dlpack_device__") != 0;
  if (!is_producer) return nullptr;
  // JAX's arrays say nowhere else that they are never to be written to.
  const bool is_immutable = is_subclass_of_imported(type, "jax", "Array") ||
                            PyObject_HasAttrString(object, "__setitem__") == 0;
  return &dlpack_library(type, instance, is_immutable);
}

// Own sizes and strides over memory that `inner`, `block` or `owner` owns.
struct Wrapper {
  dl::ManagedTensor managed{};
  dl::ManagedTensor* inner = nullptr;
  cpu::Block block;
  std::shared_ptr<void> owner;
  std::vector<int64_t> dims;  // sizes, then strides
};

// May run on any thread, and after the interpreter has ended.
void delete_wrapper(dl::ManagedTensor* self) {
  const std::unique_ptr<Wrapper> wrapper(static_cast<Wrapper*>(self->manager_ctx));
  dl::ManagedTensor* inner = wrapper->inner;
  if (inner != nullptr && inner->deleter != nullptr) inner->deleter(inner);
}

// Fills in what follows from the members, and gives the wrapper away.
dl::ManagedTensor* finish(std::unique_ptr<Wrapper> wrapper) {
  dl::ManagedTensor& managed = wrapper->managed;
  const size_t ndim = wrapper->dims.size() / 2;
  managed.version = {dl::kMajorVersion, dl::kMinorVersion};
  managed.manager_ctx = wrapper.get();
  managed.deleter = delete_wrapper;
  managed.tensor.ndim = static_cast<int32_t>(ndim);
  managed.tensor.shape = wrapper->dims.data();
  managed.tensor.strides = wrapper->dims.data() + ndim;
  managed.tensor.byte_offset = 0;
  return &wrapper.release()->managed;
}

// A tensor of ours in one piece of memory: this, the sizes and strides, then the elements.
struct SmallTensor {
  dl::ManagedTensor managed{};
};

void delete_small_tensor(dl::ManagedTensor* self) { std::free(self->manager_ctx); }

dl::ManagedTensor* make_small_tensor(const BufferSpec& spec) {
  constexpr uintptr_t kLineBytes = 64;
  const size_t ndim = spec.sizes.size();
  const size_t head_bytes = sizeof(SmallTensor) + 2 * ndim * sizeof(int64_t);
  // The system's aligned allocation costs several times a plain one.
  void* memory = std::malloc(head_bytes + kLineBytes - 1 + spec.span_bytes());
  if (memory == nullptr) throw std::bad_alloc();
  dl::ManagedTensor& managed = (new (memory) SmallTensor)->managed;
  auto* dims = reinterpret_cast<int64_t*>(static_cast<char*>(memory) + sizeof(SmallTensor));
  std::copy(spec.sizes.begin(), spec.sizes.end(), dims);
  std::copy(spec.strides.begin(), spec.strides.end(), dims + ndim);
  const auto end = reinterpret_cast<uintptr_t>(memory) + head_bytes;
  managed.version = {dl::kMajorVersion, dl::kMinorVersion};
  managed.manager_ctx = memory;
  managed.deleter = delete_small_tensor;
  managed.tensor.data = reinterpret_cast<void*>((end + kLineBytes - 1) & ~(kLineBytes - 1));
  managed.tensor.device = {dl::DeviceType::kCpu, 0};
  managed.tensor.dtype = spec.dtype;
  managed.tensor.ndim = static_cast<int32_t>(ndim);
  managed.tensor.shape = dims;
  managed.tensor.strides = dims + ndim;
  return &managed;
}

}  // namespace

const TensorLibrary* library_of(PyTypeObject* type, PyObject* instance) {
  const bool is_number = type == &PyLong_Type || type == &PyFloat_Type || type == &PyBool_Type ||
                         type == &PyComplex_Type;
  if (is_number) return nullptr;
  // Guarded by the GIL, as is the map. Most calls have tensors of one type.
  static const std::pair<PyTypeObject* const, const TensorLibrary*>* latest = nullptr;
  if (latest != nullptr && latest->first == type) return latest->second;
  static auto* const known = new std::unordered_map<PyTypeObject*, const TensorLibrary*>;
  const auto found = known->find(type);
  if (found != known->end()) {
    latest = &*found;  // entries stay where they are, and are never removed
    return found->second;
  }
  const TensorLibrary* library = resolve(type, instance);
  if (library != nullptr && known->size() < kMaxTypes) {
    Py_INCREF(reinterpret_cast<PyObject*>(type));  // so that no other type gets its address
    known->emplace(type, library);
  }
  return library;
}

const TensorLibrary* imported_torch() {
  const nb::object tensor = imported_attribute("torch", "Tensor");
  return tensor.is_valid() ? library_of(reinterpret_cast<PyTypeObject*>(tensor.ptr())) : nullptr;
}

nb::object imported_attribute(const char* module, const char* name) {
  const nb::str module_name(module);
  const nb::object imported = nb::steal(PyImport_GetModule(module_name.ptr()));
  nb::object attribute;
  if (imported.is_valid()) attribute = nb::steal(PyObject_GetAttrString(imported.ptr(), name));
  if (!attribute.is_valid()) PyErr_Clear();
  return attribute;
}

dl::ManagedTensor* make_wrapper(dl::ManagedTensor* inner, char* data,
                                const std::vector<int64_t>& sizes,
                                const std::vector<int64_t>& strides) {
  auto wrapper = std::make_unique<Wrapper>();
  wrapper->inner = inner;
  wrapper->dims = sizes;
  wrapper->dims.insert(wrapper->dims.end(), strides.begin(), strides.end());
  wrapper->managed.flags = inner->flags;
  wrapper->managed.tensor = inner->tensor;
  wrapper->managed.tensor.data = data;
  return finish(std::move(wrapper));
}

dl::ManagedTensor* make_owned_tensor(const BufferSpec& spec, dl::Device device, char* data,
                                     std::shared_ptr<void> owner) {
  auto wrapper = std::make_unique<Wrapper>();
  wrapper->owner = std::move(owner);
  wrapper->dims = spec.sizes;
  wrapper->dims.insert(wrapper->dims.end(), spec.strides.begin(), spec.strides.end());
  wrapper->managed.tensor.data = data;
  wrapper->managed.tensor.device = device;
  wrapper->managed.tensor.dtype = spec.dtype;
  return finish(std::move(wrapper));
}

dl::ManagedTensor* make_cpu_tensor(const BufferSpec& spec) {
  if (spec.span_bytes() < cpu::kMinPooledBytes) return make_small_tensor(spec);
  auto wrapper = std::make_unique<Wrapper>();
  wrapper->block = cpu::Block(spec.span_bytes());
  wrapper->dims = spec.sizes;
  wrapper->dims.insert(wrapper->dims.end(), spec.strides.begin(), spec.strides.end());
  wrapper->managed.tensor.data = wrapper->block.data();
  wrapper->managed.tensor.device = {dl::DeviceType::kCpu, 0};
  wrapper->managed.tensor.dtype = spec.dtype;
  return finish(std::move(wrapper));
}

TensorArg to_argument(const dl::Tensor& tensor, uint64_t flags) {
  TensorArg argument;
  argument.data = tensor.address();
  argument.device = tensor.device;
  if (tensor.device.type == dl::DeviceType::kCudaHost) {
    argument.device = {dl::DeviceType::kCpu, 0};
  } else if (tensor.device.type == dl::DeviceType::kCudaManaged) {
    argument.device.type = dl::DeviceType::kCuda;
  }
  argument.dtype = tensor.dtype;
  argument.ndim = tensor.ndim;
  argument.sizes = tensor.shape;
  argument.strides = tensor.strides;
  argument.is_read_only = (flags & dl::kReadOnly) != 0;
  return argument;
}

}  // namespace fuser_direct
