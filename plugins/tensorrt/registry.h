// nvinfer1::IPluginRegistry up to loadLibrary, in the two forms that it has had. It has no version of its own to ask
// for: which form a library has follows from the library's number (autoload.cc).
#ifndef BERTFUSE_TENSORRT_REGISTRY_H_
#define BERTFUSE_TENSORRT_REGISTRY_H_

#include <cstdint>

// In no unnamed namespace: the compiler would see that nothing there implements these classes, and drop the calls.
namespace bertfuse::tensorrt::abi {

// TensorRT 10.0 to 10.16. Of 8.5 to 9.3, where its name is registerCreator, only the first function is used: 8.6.0 and
// 8.6.1 have others in another order.
namespace v10 {

class IPluginRegistry {
 public:
  virtual bool registerCreatorV1(void* creator, const char* name_space) noexcept = 0;
  virtual void* getPluginCreatorList(int32_t* count) const noexcept = 0;
  virtual void* getPluginCreator(const char* name, const char* version, const char* name_space) noexcept = 0;
  virtual ~IPluginRegistry() = default;
  virtual void setErrorRecorder(void* recorder) noexcept = 0;
  virtual void* getErrorRecorder() const noexcept = 0;
  virtual bool deregisterCreatorV1(const void* creator) noexcept = 0;
  virtual bool isParentSearchEnabled() const = 0;
  virtual void setParentSearchEnabled(bool enabled) = 0;
  virtual void* loadLibrary(const char* path) noexcept = 0;
};

}  // namespace v10

// TensorRT 11.0 and 11.1, and TensorRT for RTX 1.7.1: without what was deprecated.
namespace v11 {

class IPluginRegistry {
 public:
  virtual ~IPluginRegistry() = default;
  virtual void setErrorRecorder(void* recorder) noexcept = 0;
  virtual void* getErrorRecorder() const noexcept = 0;
  virtual bool isParentSearchEnabled() const = 0;
  virtual void setParentSearchEnabled(bool enabled) = 0;
  virtual void* loadLibrary(const char* path) noexcept = 0;
};

}  // namespace v11

}  // namespace bertfuse::tensorrt::abi
#endif  // BERTFUSE_TENSORRT_REGISTRY_H_
