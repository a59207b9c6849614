// The TensorRT libraries that are loaded in this process.
#ifndef BERTFUSE_TENSORRT_HOSTS_H_
#define BERTFUSE_TENSORRT_HOSTS_H_

#include <cstdint>
#include <functional>

namespace bertfuse::tensorrt {

// The version of the library that an object's class is from, as TensorRT's getInferLibVersion says it, or 0.
int32_t VersionOfLibraryOf(const void* object);

// Calls body(handle, version) for every loaded TensorRT or TensorRT for RTX, and for the main program where one is
// linked into it, until it returns true; `handle` is for dlsym, and valid during the call. Says whether it did.
bool AnyHost(const std::function<bool(void* handle, int32_t version)>& body);

}  // namespace bertfuse::tensorrt
#endif  // BERTFUSE_TENSORRT_HOSTS_H_
