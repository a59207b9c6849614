#include "tensorrt/hosts.h"

#include <dlfcn.h>
#include <link.h>

#include <cstring>
#include <string>
#include <vector>

namespace bertfuse::tensorrt {
namespace {

constexpr const char* kHosts[] = {"libnvinfer.so", "libtensorrt_rtx.so"};

// Adds the path of a loaded library that is a TensorRT.
int AddHost(dl_phdr_info* info, size_t, void* hosts) {
  const char* slash = std::strrchr(info->dlpi_name, '/');
  const char* name = slash == nullptr ? info->dlpi_name : slash + 1;
  for (const char* host : kHosts) {
    if (std::strncmp(name, host, std::strlen(host)) == 0) {
      static_cast<std::vector<std::string>*>(hosts)->push_back(info->dlpi_name);
    }
  }
  return 0;
}

void* OpenLoaded(const char* path) {
  // The main program, into which TensorRT may be linked, has no name.
  return dlopen(path[0] == '\0' ? nullptr : path, RTLD_LAZY | RTLD_NOLOAD);
}

int32_t VersionOf(void* handle) {
  const auto version = reinterpret_cast<int32_t (*)()>(dlsym(handle, "getInferLibVersion"));
  return version == nullptr ? 0 : version();
}

}  // namespace

int32_t VersionOfLibraryOf(const void* object) {
  const void* vtable = *static_cast<const void* const*>(object);
  Dl_info info = {};
  link_map* module = nullptr;
  if (dladdr1(vtable, &info, reinterpret_cast<void**>(&module), RTLD_DL_LINKMAP) == 0 || module == nullptr) return 0;
  void* library = OpenLoaded(module->l_name);
  if (library == nullptr) return 0;
  const int32_t version = VersionOf(library);
  dlclose(library);
  return version;
}

bool AnyHost(const std::function<bool(void* handle, int32_t version)>& body) {
  std::vector<std::string> hosts;
  dl_iterate_phdr(AddHost, &hosts);
  hosts.emplace_back();
  for (const std::string& host : hosts) {
    void* handle = OpenLoaded(host.c_str());
    if (handle == nullptr) continue;
    const int32_t version = VersionOf(handle);
    const bool found = version != 0 && body(handle, version);
    dlclose(handle);
    if (found) return true;
  }
  return false;
}

}  // namespace bertfuse::tensorrt
