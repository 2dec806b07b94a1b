// The tensor libraries that the executor knows, and how it tells their tensors apart.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <vector>

#include "core/dlpack.h"
#include "executor/framework.h"

namespace fuser_direct {

class ArgumentList;

// A tensor library that also reads its own tensors.
class TensorLibrary : public Framework {
 public:
  // Fills `out` from `object`; dims that must be computed come from `list`. Throws InputError
  // without a position, or nanobind::python_error.
  virtual void read(PyObject* object, ArgumentList& list, TensorArg& out) const = 0;
};

// The library of a tensor's type; null for a type that is no tensor. Kept for each type. Types of
// the array API are told by an instance; without one no library is found for them anew.
const TensorLibrary* library_of(PyTypeObject* type, PyObject* instance = nullptr);

// PyTorch, where the process has imported it, else null.
const TensorLibrary* imported_torch();

// The libraries, one file each. All live until the process ends.
const TensorLibrary& exchange_library(const dl::ExchangeApi* api, bool is_torch);
const TensorLibrary& numpy_library();
const TensorLibrary& torch_library();  // PyTorch before 2.10, through its Python API
// Any producer of `__dlpack__`; outputs where an array API's namespace or its package has
// from_dlpack. is_immutable: no array of it is ever written to.
const TensorLibrary& dlpack_library(PyTypeObject* type, PyObject* instance, bool is_immutable);

// Drops the objects once `stream` is done with the work that it has now.
void release_after(std::vector<PyObject*> objects, dl::Device device, void* stream) noexcept;

// A tensor with strides or memory of its own over the memory of `inner`, which it owns.
dl::ManagedTensor* make_wrapper(dl::ManagedTensor* inner, char* data,
                                const std::vector<int64_t>& sizes,
                                const std::vector<int64_t>& strides);

// A tensor for `spec` in memory at `data`, which `owner` keeps.
dl::ManagedTensor* make_owned_tensor(const BufferSpec& spec, dl::Device device, char* data,
                                     std::shared_ptr<void> owner);

// A tensor for `spec` in CPU memory of ours.
dl::ManagedTensor* make_cpu_tensor(const BufferSpec& spec);

// Copies a described tensor's metadata; device types of pinned and managed memory count as the
// device that they are used from.
TensorArg to_argument(const dl::Tensor& tensor, uint64_t flags);

// Object of `names` in an imported module, or an empty object if the module isn't imported.
nanobind::object imported_attribute(const char* module, const char* name);

}  // namespace fuser_direct
