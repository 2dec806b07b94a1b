// Python objects held by the core.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

namespace fuser_direct {

// Keeps `object` alive as long as the result lives, which may end on any thread; once the
// interpreter is gone the object stays as it is.
std::shared_ptr<void> own(nanobind::object object);

// Runs fn with the GIL held, unless the interpreter is gone.
template <typename Function>
void with_gil(Function&& fn) noexcept {
  if (!Py_IsInitialized()) return;
  const PyGILState_STATE state = PyGILState_Ensure();
  fn();
  PyGILState_Release(state);
}

}  // namespace fuser_direct
