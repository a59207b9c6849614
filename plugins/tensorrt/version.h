// Which form of TensorRT's interfaces a library has. Neither its logger nor its plugin registry can be asked: both
// differ from the first function on. The number tells that its getInferLibVersion returns: 8600 is TensorRT 8.6.0,
// 100900 is TensorRT 10.9.0, 110100 is TensorRT 11.1.0, 10701 is TensorRT for RTX 1.7.1.
#ifndef BERTFUSE_TENSORRT_VERSION_H_
#define BERTFUSE_TENSORRT_VERSION_H_

#include <cstdint>

namespace bertfuse::tensorrt {

// kV8: TensorRT 8.5 to 9.3, which take IPluginV2DynamicExt. The logger is that of kV10.
enum class HostForm { kUnknown, kV8, kV10, kV11 };

constexpr HostForm FormOf(int32_t version) {
  if (version >= 8500 && version < 10000) return HostForm::kV8;
  if (version >= 100000 && version < 110000) return HostForm::kV10;
  const bool rtx = version >= 10700 && version < 20000;
  return rtx || (version >= 110000 && version < 120000) ? HostForm::kV11 : HostForm::kUnknown;
}

}  // namespace bertfuse::tensorrt
#endif  // BERTFUSE_TENSORRT_VERSION_H_
