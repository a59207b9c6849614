#include "kernels/cublaslt/library.h"

#include <dlfcn.h>
#include <link.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <vector>

#include "kernels/cublaslt/capture.h"

namespace bertfuse::kernels::cublaslt {
namespace {

constexpr int kNewest = 13, kOldest = 11;  // major versions whose ABI is known

std::string FileName(const char* library, int major) { return library + std::string(".so.") + std::to_string(major); }

// That of the CUDA that this library was built with first, because the driver serves it.
std::vector<int> Majors() {
  std::vector<int> majors = {CUDART_VERSION / 1000};
  for (int major = kNewest; major >= kOldest; --major) {
    if (major != majors[0]) majors.push_back(major);
  }
  return majors;
}

// The functions of an open library, or why it cannot be used.
std::string Read(void* file, int major, Library* library) {
#define BERTFUSE_CUBLASLT_LOOK_UP(NAME, RESULT, ...)                                        \
  library->NAME = reinterpret_cast<decltype(library->NAME)>(dlsym(file, "cublasLt" #NAME)); \
  if (library->NAME == nullptr) return "has no function cublasLt" #NAME;
  BERTFUSE_CUBLASLT_FUNCTIONS(BERTFUSE_CUBLASLT_LOOK_UP)
#undef BERTFUSE_CUBLASLT_LOOK_UP
  library->GetStatusName = reinterpret_cast<const char* (*)(int)>(dlsym(file, "cublasLtGetStatusName"));
  library->version = library->GetVersion();
  if (library->version / 10000 != static_cast<size_t>(major)) {
    return "is of version " + std::to_string(library->version) + ", which is not " + std::to_string(major) + ".x";
  }
  return "";
}

void Say(const std::string& what) {
  std::fprintf(stderr, "bertfuse: %s; products run in bertfuse's own kernels\n", what.c_str());
}

class Search {
 public:
  // What was found, of all places.
  bool Run() {
    const std::vector<int> majors = Majors();
    for (int major : majors) {
      if (Try(FileName("libcublasLt", major), major, RTLD_NOLOAD)) return true;
    }
    for (int major : majors) {
      if (Try(FileName("libcublasLt", major), major, 0)) return true;
    }
    for (int major : majors) {
      for (const std::string& file : BesideRuntime(major)) {
        if (Try(file, major, 0)) return true;
      }
    }
    return false;
  }
  const Library& found() const { return library_; }

 private:
  bool Try(const std::string& name, int major, int flags) {
    void* const file = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | flags);
    if (file == nullptr) return false;
    const std::string fault = Read(file, major, &library_);
    if (fault.empty()) return true;  // and the library stays open
    static std::atomic<bool> said(false);
    if (!said.exchange(true)) Say(name + " " + fault);
    dlclose(file);
    library_ = {};
    return false;
  }

  // Where pip's packages have it, seen from the CUDA runtime that the process has loaded from one: in the same folder
  // since CUDA 13, before that in one of its own.
  static std::vector<std::string> BesideRuntime(int major) {
    void* const runtime = dlopen(FileName("libcudart", major).c_str(), RTLD_NOW | RTLD_NOLOAD);
    if (runtime == nullptr) return {};
    link_map* map = nullptr;
    std::vector<std::string> files;
    if (dlinfo(runtime, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr && map->l_name[0] == '/') {
      const std::string path = map->l_name, folder = path.substr(0, path.rfind('/'));
      for (const char* step : {"/", "/../../cublas/lib/"})
        files.push_back(folder + step + FileName("libcublasLt", major));
    }
    dlclose(runtime);
    return files;
  }

  Library library_;
};

// How many libraries the process has loaded so far.
unsigned long long Loaded() {
  unsigned long long count = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* answer) {
        *static_cast<unsigned long long*>(answer) = info->dlpi_adds;
        return 1;
      },
      &count);
  return count;
}

struct Slot {
  std::once_flag once;
  Handle handle = nullptr;
};

}  // namespace

const Library* FindLibrary() {
  static std::atomic<const Library*> known(nullptr);
  static std::atomic<unsigned long long> searched(0);
  static std::mutex mutex;
  const Library* library = known.load(std::memory_order_acquire);
  if (library != nullptr || searched.load(std::memory_order_relaxed) == Loaded()) return library;
  const std::lock_guard<std::mutex> lock(mutex);
  if (known.load(std::memory_order_relaxed) == nullptr && searched.load(std::memory_order_relaxed) != Loaded()) {
    Search search;
    if (search.Run()) known.store(new Library(search.found()), std::memory_order_release);
    searched.store(Loaded(), std::memory_order_relaxed);
  }
  return known.load(std::memory_order_relaxed);
}

Handle HandleOf(const Device& device) {
  static std::array<Slot, kMaxDevices> slots;
  const Library* const library = FindLibrary();
  if (library == nullptr) return nullptr;
  Slot& slot = slots[device.id];
  std::call_once(slot.once, [&] {
    const DeviceScope scope(device.id);
    const OutsideCapture outside;
    const int status = scope.error() == cudaSuccess ? library->Create(&slot.handle) : kNotInitialized;
    if (status == kSuccess) return;
    slot.handle = nullptr;
    Say("cuBLASLt " + VersionName() + " makes no handle for CUDA device " + std::to_string(device.id) + ": " +
        StatusName(status));
  });
  return slot.handle;
}

std::string StatusName(int status) {
  const Library* const library = FindLibrary();
  const char* const name =
      library == nullptr || library->GetStatusName == nullptr ? nullptr : library->GetStatusName(status);
  return name == nullptr ? "status " + std::to_string(status) : name + (" (" + std::to_string(status) + ")");
}

std::string VersionName() {
  const Library* const library = FindLibrary();
  if (library == nullptr) return "";
  const size_t version = library->version;
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace bertfuse::kernels::cublaslt
