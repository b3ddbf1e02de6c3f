// SPDX-License-Identifier: MIT
#include "runtime/sycl_openmp.h"

#include <dlfcn.h>
#include <link.h>

#include <cstring>
#include <string>

namespace xpugraph::sycl_cpu {

namespace {

using PauseAll = int (*)(int);
constexpr int kPauseSoft = 1;  // omp_pause_soft of OpenMP 5.0: thread settings survive

int find_libgomp(dl_phdr_info* info, std::size_t, void* path) {
  if (info->dlpi_name == nullptr || std::strstr(info->dlpi_name, "libgomp") == nullptr) return 0;
  *static_cast<std::string*>(path) = info->dlpi_name;
  return 1;
}

PauseAll find_pause_all() {
  std::string path;
  dl_iterate_phdr(find_libgomp, &path);
  if (path.empty()) return nullptr;
  void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  return reinterpret_cast<PauseAll>(dlsym(library, "omp_pause_resource_all"));
}

}  // namespace

void release_host_openmp() noexcept {
  static const PauseAll pause_all = find_pause_all();
  if (pause_all != nullptr) pause_all(kPauseSoft);
}

}  // namespace xpugraph::sycl_cpu
