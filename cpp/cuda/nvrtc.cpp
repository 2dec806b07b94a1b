#include "cuda/nvrtc.h"

#include <dlfcn.h>

#include <cstdlib>
#include <iomanip>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>

#include "core/error.h"

namespace fuser_direct::cuda {
namespace {

using Program = struct NvrtcProgramSt*;
constexpr int kSuccess = 0;
constexpr const char* kTargetOption = "--gpu-architecture=";

constexpr const char* kInstallHint =
    "install NVRTC with `pip install fuser_direct[cu13]` (or [cu12] for a CUDA 12 driver), or set "
    "FUSER_DIRECT_NVRTC to the full path of a libnvrtc.so";

template <typename Function>
void bind_symbol(void* library, const char* name, const std::string& path, Function*& into) {
  into = reinterpret_cast<Function*>(dlsym(library, name));
  if (into == nullptr) {
    throw UnsupportedError("NVRTC: " + path + " has no " + name +
                           ", so it is no NVRTC of CUDA 12 or later; " + kInstallHint);
  }
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

// Folder of the file itself where `path` is a link, as in a toolkit's lib64.
std::string real_folder_of(const std::string& path) {
  const std::unique_ptr<char, void (*)(void*)> real(realpath(path.c_str(), nullptr), std::free);
  return folder_of(real ? std::string(real.get()) : path);
}

std::string numbered(const std::string& source) {
  std::istringstream lines(source);
  std::ostringstream out;
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    out << std::setw(5) << number << "  " << line << '\n';
  }
  return out.str();
}

std::string target_of(const std::vector<std::string>& options) {
  const std::string prefix = kTargetOption;
  for (const std::string& option : options) {
    if (option.compare(0, prefix.size(), prefix) == 0) return option.substr(prefix.size());
  }
  return "";
}

}  // namespace

struct Nvrtc::Api {
  const char* (*get_error_string)(int) = nullptr;
  int (*version)(int*, int*) = nullptr;
  int (*num_targets)(int*) = nullptr;
  int (*targets)(int*) = nullptr;
  int (*create)(Program*, const char*, const char*, int, const char* const*,
                const char* const*) = nullptr;
  int (*destroy)(Program*) = nullptr;
  int (*compile)(Program, int, const char* const*) = nullptr;
  int (*cubin_size)(Program, std::size_t*) = nullptr;
  int (*cubin)(Program, char*) = nullptr;
  int (*ptx_size)(Program, std::size_t*) = nullptr;
  int (*ptx)(Program, char*) = nullptr;
  int (*log_size)(Program, std::size_t*) = nullptr;
  int (*log)(Program, char*) = nullptr;

  Api(void* library, const std::string& path) {
    bind_symbol(library, "nvrtcGetErrorString", path, get_error_string);
    bind_symbol(library, "nvrtcVersion", path, version);
    bind_symbol(library, "nvrtcGetNumSupportedArchs", path, num_targets);
    bind_symbol(library, "nvrtcGetSupportedArchs", path, targets);
    bind_symbol(library, "nvrtcCreateProgram", path, create);
    bind_symbol(library, "nvrtcDestroyProgram", path, destroy);
    bind_symbol(library, "nvrtcCompileProgram", path, compile);
    bind_symbol(library, "nvrtcGetCUBINSize", path, cubin_size);
    bind_symbol(library, "nvrtcGetCUBIN", path, cubin);
    bind_symbol(library, "nvrtcGetPTXSize", path, ptx_size);
    bind_symbol(library, "nvrtcGetPTX", path, ptx);
    bind_symbol(library, "nvrtcGetProgramLogSize", path, log_size);
    bind_symbol(library, "nvrtcGetProgramLog", path, log);
  }

  void check(int result, const char* call) const {
    if (result == kSuccess) return;
    throw CompileError(std::string("NVRTC: ") + call + " failed: " + get_error_string(result));
  }

  // Text or bytes of `program` by a pair of calls: its size, then the content.
  std::string read(Program program, int (*size)(Program, std::size_t*), int (*get)(Program, char*),
                   const char* call) const {
    std::size_t bytes = 0;
    check(size(program, &bytes), call);
    std::string content(bytes, '\0');
    if (bytes > 0) check(get(program, content.data()), call);
    return content;
  }

  // As read(), for text: without the closing zero byte.
  std::string read_text(Program program, int (*size)(Program, std::size_t*),
                        int (*get)(Program, char*), const char* call) const {
    std::string text = read(program, size, get, call);
    text.resize(text.find_last_not_of(std::string("\0\n", 2)) + 1);
    return text;
  }
};

const Nvrtc& Nvrtc::open(const std::string& path) {
  static std::mutex mutex;
  // Left alive at exit, for threads that are still compiling.
  static auto* const opened = new std::map<std::string, std::unique_ptr<const Nvrtc>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<const Nvrtc>& entry = (*opened)[path];
  if (entry != nullptr) return *entry;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    throw UnsupportedError("NVRTC: can't open " + path + " (" +
                           (reason != nullptr ? reason : "no reason given") + "); " + kInstallHint);
  }
  entry.reset(new Nvrtc(path, library));
  return *entry;
}

Nvrtc::Nvrtc(const std::string& path, void* library)
    : path_(path), api_(std::make_unique<Api>(library, path)) {
  api_->check(api_->version(&major_, &minor_), "nvrtcVersion");
  // NVRTC opens its builtins by bare name; a library of that name that is loaded already is taken.
  // Where the folder has none, NVRTC's own search goes on as usual.
  const std::string builtins = real_folder_of(path) + "/libnvrtc-builtins.so." +
                               std::to_string(major_) + "." + std::to_string(minor_);
  dlopen(builtins.c_str(), RTLD_NOW | RTLD_LOCAL);
  int count = 0;
  api_->check(api_->num_targets(&count), "nvrtcGetNumSupportedArchs");
  targets_.resize(static_cast<std::size_t>(count));
  if (count > 0) api_->check(api_->targets(targets_.data()), "nvrtcGetSupportedArchs");
}

Nvrtc::~Nvrtc() = default;

void Nvrtc::check_target(const std::string& target, const std::string& name) const {
  const std::size_t digits = target.find_first_of("0123456789");
  const int number = digits == std::string::npos ? 0 : std::atoi(target.c_str() + digits);
  std::string known;
  for (const int each : targets_) {
    if (each == number) return;
    known += (known.empty() ? "sm_" : ", sm_") + std::to_string(each);
  }
  throw UnsupportedError("build " + name + ": NVRTC " + std::to_string(major_) + "." +
                         std::to_string(minor_) + " (" + path_ + ") doesn't know the target '" +
                         target + "'; it builds for " + known +
                         ". Give one of those, or install another NVRTC.");
}

void Nvrtc::refuse(int result, const std::string& source, const std::string& name,
                   const std::string& target, const std::string& log) const {
  throw CompileError("build " + name + ": NVRTC " + std::to_string(major_) + "." +
                     std::to_string(minor_) + " failed for " + target + ": " +
                     api_->get_error_string(result) + "\n" + log + "\nsource of " + name + ":\n" +
                     numbered(source));
}

Compiled Nvrtc::compile(const std::string& source, const std::string& name,
                        const std::vector<std::string>& options) const {
  const std::string target = target_of(options);
  check_target(target, name);
  Program raw = nullptr;
  const std::string file = name + ".cu";
  api_->check(api_->create(&raw, source.c_str(), file.c_str(), 0, nullptr, nullptr),
              "nvrtcCreateProgram");
  const auto destroy = [this](Program program) { api_->destroy(&program); };
  const std::unique_ptr<NvrtcProgramSt, decltype(destroy)> program(raw, destroy);
  std::vector<const char*> flags;
  for (const std::string& option : options) flags.push_back(option.c_str());
  const int result = api_->compile(raw, static_cast<int>(flags.size()), flags.data());
  Compiled compiled;
  compiled.log = api_->read_text(raw, api_->log_size, api_->log, "nvrtcGetProgramLog");
  if (result != kSuccess) refuse(result, source, name, target, compiled.log);
  compiled.image = target.compare(0, 3, "sm_") == 0
                       ? api_->read(raw, api_->cubin_size, api_->cubin, "nvrtcGetCUBIN")
                       : api_->read_text(raw, api_->ptx_size, api_->ptx, "nvrtcGetPTX") + "\n";
  return compiled;
}

}  // namespace fuser_direct::cuda
