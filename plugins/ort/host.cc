#include "ort/host.h"

#include <algorithm>

namespace bertfuse::ort {
namespace {

constexpr int kGemmOpset = 13;

Owned<OrtOpAttr> Attribute(const char* name, const void* value, OrtOpAttrType type) {
  OrtOpAttr* attribute = nullptr;
  Check(Api().CreateOpAttr(name, value, 1, type, &attribute));
  return Owned<OrtOpAttr>(attribute);
}

Owned<OrtOp> MakeGemm(const OrtKernelInfo* info, int inputs) {
  const float one = 1.0f;
  const int64_t no = 0, yes = 1;
  // Created this way a node gets no defaults from its schema: every attribute has to be there.
  const Owned<OrtOpAttr> attributes[] = {
      Attribute("alpha", &one, ORT_OP_ATTR_FLOAT), Attribute("beta", &one, ORT_OP_ATTR_FLOAT),
      Attribute("transA", &no, ORT_OP_ATTR_INT), Attribute("transB", &yes, ORT_OP_ATTR_INT)};
  const OrtOpAttr* values[] = {attributes[0].get(), attributes[1].get(), attributes[2].get(), attributes[3].get()};
  const char* constraint = "T";
  const ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  OrtOp* op = nullptr;
  Check(Api().CreateOp(info, "Gemm", "", kGemmOpset, &constraint, &type, 1, values, 4, inputs, 1, &op));
  return Owned<OrtOp>(op);
}

Owned<OrtValue> View(const OrtMemoryInfo* memory, const float* data, std::initializer_list<int64_t> shape) {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  OrtValue* value = nullptr;
  Check(Api().CreateTensorWithDataAsOrtValue(memory, const_cast<float*>(data),
                                             static_cast<size_t>(count) * sizeof(float), shape.begin(), shape.size(),
                                             ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
  return Owned<OrtValue>(value);
}

// One range of a ParallelFor: ONNX Runtime counts items, the kernels want ranges.
struct Ranges {
  int64_t count, grain;
  void (*body)(void* user, int64_t begin, int64_t end);
  void* user;

  static void Run(void* self, size_t index) {
    const Ranges& ranges = *static_cast<const Ranges*>(self);
    const int64_t begin = static_cast<int64_t>(index) * ranges.grain;
    ranges.body(ranges.user, begin, std::min(begin + ranges.grain, ranges.count));
  }
};

void FillRows(int64_t m, int64_t n, const float* bias, float* y) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) y[i * n + j] = bias == nullptr ? 0.0f : bias[j];
  }
}

}  // namespace

HostGemm::HostGemm(const OrtKernelInfo* info) {
  OrtMemoryInfo* memory = nullptr;
  Check(Api().CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
  memory_.reset(memory);
  plain_ = MakeGemm(info, 2);
  biased_ = MakeGemm(info, 3);
}

void HostGemm::Run(OrtKernelContext* context, int64_t m, int64_t n, int64_t k, const float* x, const float* weight,
                   const float* bias, float* y) const {
  if (m == 0 || n == 0) return;
  if (k == 0) return FillRows(m, n, bias, y);
  const Owned<OrtValue> x_value = View(memory_.get(), x, {m, k}), weight_value = View(memory_.get(), weight, {n, k}),
                        bias_value = bias == nullptr ? nullptr : View(memory_.get(), bias, {n}),
                        y_value = View(memory_.get(), y, {m, n});
  const OrtValue* inputs[] = {x_value.get(), weight_value.get(), bias_value.get()};
  OrtValue* output = y_value.get();
  const OrtOp* op = bias == nullptr ? plain_.get() : biased_.get();
  Check(Api().InvokeOp(context, op, inputs, bias == nullptr ? 2 : 3, &output, 1));
}

Host::Host(OrtKernelContext* context, const HostGemm& gemm) : api_(&Api()), context_(context), gemm_(gemm) {
  host_.context = this;
  host_.parallel_for = [](void* self, int64_t count, int64_t grain,
                          void (*body)(void* user, int64_t begin, int64_t end), void* user) {
    grain = std::max<int64_t>(grain, 1);
    if (count <= grain) {
      if (count > 0) body(user, 0, count);
      return;
    }
    const Host& host = *static_cast<Host*>(self);
    const ApiScope scope(host.api_);
    Ranges ranges = {count, grain, body, user};
    const size_t total = static_cast<size_t>((count + grain - 1) / grain);
    OrtStatus* status = Api().KernelContext_ParallelFor(host.context_, Ranges::Run, total, 0, &ranges);
    if (status == nullptr) return;
    // It refuses before running anything, so the work is still all to do.
    Api().ReleaseStatus(status);
    body(user, 0, count);
  };
  host_.gemm = [](void* self, int64_t m, int64_t n, int64_t k, const float* x, const float* weight, const float* bias,
                  float* y, bertfuse_error* error) -> int32_t {
    const Host& host = *static_cast<Host*>(self);
    const ApiScope scope(host.api_);  // a kernel may call from any of its threads
    return Guarded(error, [&] { host.gemm_.Run(host.context_, m, n, k, x, weight, bias, y); });
  };
}

}  // namespace bertfuse::ort
