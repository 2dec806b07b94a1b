// Memory and waits in the order of a stream's work.
#pragma once

#include <cstddef>
#include <memory>

namespace fuser_direct::cuda {

// Memory of device `id` from the driver's pool, for work queued on `stream` from now on; it goes
// back when its owner does, after the work that is on `stream` by then. The stream must live as
// long. Throws CudaError.
std::shared_ptr<void> allocate_in_order(int id, std::size_t bytes, void* stream);

// Work queued on `later` from now on waits for what is on `earlier` now. Throws CudaError.
void make_wait(int id, void* later, void* earlier);

// Calls function(data) on a thread of the driver's after the work that is on `stream` now. False
// if it won't be called: the stream is being captured into a graph, or the driver refuses.
bool call_after(int id, void* stream, void (*function)(void*), void* data) noexcept;

}  // namespace fuser_direct::cuda
