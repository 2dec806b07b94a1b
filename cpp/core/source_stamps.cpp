#include "core/source_stamps.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <vector>

namespace fuser_direct {
namespace {

struct CloseFolder {
  void operator()(DIR* folder) const { closedir(folder); }
};

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

bool is_source(std::string_view name) {
  return ends_with(name, ".py") || ends_with(name, ".cuh") || ends_with(name, ".so");
}

void collect(const std::string& folder, std::vector<std::string>& lines) {
  const std::unique_ptr<DIR, CloseFolder> open(opendir(folder.c_str()));
  if (open == nullptr) {
    return;
  }
  while (const dirent* entry = readdir(open.get())) {
    const std::string_view name = entry->d_name;
    // Some file systems don't say what an entry is, and a link may be either.
    const bool may_be_folder =
        entry->d_type != DT_REG && name.front() != '.' && name != "__pycache__";
    struct stat found{};
    if ((!is_source(name) && !may_be_folder) ||
        fstatat(dirfd(open.get()), entry->d_name, &found, 0) != 0) {
      continue;
    }
    const std::string path = folder + '/' + entry->d_name;
    if (S_ISDIR(found.st_mode)) {
      collect(path, lines);
    } else if (is_source(name)) {
      const auto time_ns =
          static_cast<long long>(found.st_mtim.tv_sec) * 1'000'000'000 + found.st_mtim.tv_nsec;
      lines.push_back(path + ' ' + std::to_string(found.st_size) + ' ' + std::to_string(time_ns));
    }
  }
}

}  // namespace

std::string source_stamps(const std::string& folder) {
  std::vector<std::string> lines;
  collect(folder, lines);
  std::sort(lines.begin(), lines.end());
  std::string text;
  for (const std::string& line : lines) {
    text += line;
    text += '\n';
  }
  return text;
}

}  // namespace fuser_direct
