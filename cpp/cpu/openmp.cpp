#include "cpu/openmp.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

namespace fuser_direct::cpu {

namespace {

bool is_openmp_library(const char* path) {
  const char* slash = std::strrchr(path, '/');
  const char* name = slash != nullptr ? slash + 1 : path;
  const char* const kPrefixes[] = {"libgomp", "libomp", "libiomp"};
  return std::any_of(std::begin(kPrefixes), std::end(kPrefixes), [name](const char* prefix) {
    return std::strncmp(name, prefix, std::strlen(prefix)) == 0;
  });
}

int collect_path(dl_phdr_info* info, size_t, void* paths) {
  if (info->dlpi_name != nullptr && is_openmp_library(info->dlpi_name)) {
    static_cast<std::vector<std::string>*>(paths)->push_back(info->dlpi_name);
  }
  return 0;
}

std::vector<std::string> loaded_runtimes() {
  std::vector<std::string> paths;
  dl_iterate_phdr(collect_path, &paths);
  std::stable_partition(paths.begin(), paths.end(), [](const std::string& path) {
    return path.find("/torch") != std::string::npos;
  });
  return paths;
}

template <typename Function>
bool resolve(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

std::unique_ptr<OpenMp> open_runtime(const std::string& path, int flags) {
  void* library = dlopen(path.c_str(), flags);
  if (library == nullptr) return nullptr;
  auto runtime = std::make_unique<OpenMp>();
  runtime->path = path;
  const bool is_complete = resolve(library, "GOMP_parallel", runtime->parallel) &&
                           resolve(library, "omp_get_thread_num", runtime->thread_number) &&
                           resolve(library, "omp_get_max_threads", runtime->max_threads) &&
                           resolve(library, "omp_in_parallel", runtime->in_parallel);
  // The handle stays open for good: its worker threads run its code until the process ends.
  return is_complete ? std::move(runtime) : nullptr;
}

std::unique_ptr<OpenMp> find_runtime() {
  for (const std::string& path : loaded_runtimes()) {
    auto runtime = open_runtime(path, RTLD_NOW | RTLD_NOLOAD);
    if (runtime != nullptr) return runtime;
  }
  return open_runtime("libgomp.so.1", RTLD_NOW | RTLD_LOCAL);
}

}  // namespace

const OpenMp* openmp() {
  static const std::unique_ptr<OpenMp> runtime = find_runtime();
  return runtime.get();
}

}  // namespace fuser_direct::cpu
