#include "product.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace fake_cublaslt {
namespace {

double Load(const void* data, cudaDataType_t type, int64_t at) {
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[at];
  if (type == CUDA_R_16F) return __half2float(static_cast<const __half*>(data)[at]);
  return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]);
}

void Store(void* data, cudaDataType_t type, int64_t at, float value) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(data)[at] = value;
  } else if (type == CUDA_R_16F) {
    static_cast<__half*>(data)[at] = __float2half_rn(value);
  } else {
    static_cast<__nv_bfloat16*>(data)[at] = __float2bfloat16_rn(value);
  }
}

}  // namespace

std::string Judge(const OpaqueMatmulDesc& desc, const OpaqueMatrixLayout& a, const OpaqueMatrixLayout& b,
                  const OpaqueMatrixLayout& c, const OpaqueMatrixLayout& d) {
  if (desc.scale != CUDA_R_32F) return "the scale's type is not float32";
  if (a.type != b.type) return "operands differ in their type";
  const bool wide = a.type == CUDA_R_32F;
  if (!wide && a.type != CUDA_R_16F && a.type != CUDA_R_16BF) return "there is no such type of operands";
  if (!(c == d)) return "C is not D";
  if (d.type != a.type && d.type != CUDA_R_32F) return "there is no such type of results";
  if (desc.compute != kCompute32F && !(wide && desc.compute == kCompute32FFastTf32)) return "no such compute type";
  const bool transposed_a = desc.trans_a == kOpT, transposed_b = desc.trans_b == kOpT;
  const uint64_t m = transposed_a ? a.columns : a.rows, k = transposed_a ? a.rows : a.columns;
  const uint64_t n = transposed_b ? b.rows : b.columns;
  if ((transposed_b ? b.columns : b.rows) != k || d.rows != m || d.columns != n) return "sizes do not fit";
  if (m == 0 || n == 0 || k == 0) return "an empty product";
  for (const OpaqueMatrixLayout* x : {&a, &b, &d}) {
    if (x->leading < static_cast<int64_t>(x->rows)) return "a leading dimension is too small";
  }
  if (desc.epilogue != kEpilogueDefault && desc.epilogue != kEpilogueBias) return "an epilogue that is not ours";
  if ((desc.epilogue == kEpilogueBias) != (desc.bias != nullptr)) return "bias and epilogue do not fit";
  return "";
}

void Compute(const OpaqueMatmulDesc& desc, const void* a, const OpaqueMatrixLayout& al, const void* b,
             const OpaqueMatrixLayout& bl, void* d, const OpaqueMatrixLayout& dl) {
  const auto k = static_cast<int64_t>(desc.trans_a == kOpT ? al.rows : al.columns);
  const auto index = [](const OpaqueMatrixLayout& x, int32_t op, int64_t row, int64_t column) {
    return op == kOpT ? column + row * x.leading : row + column * x.leading;
  };
  for (int64_t j = 0; j < static_cast<int64_t>(dl.columns); ++j) {
    for (int64_t i = 0; i < static_cast<int64_t>(dl.rows); ++i) {
      double sum = desc.bias == nullptr ? 0 : Load(desc.bias, dl.type, i);
      for (int64_t l = 0; l < k; ++l) {
        sum += Load(a, al.type, index(al, desc.trans_a, i, l)) * Load(b, bl.type, index(bl, desc.trans_b, l, j));
      }
      Store(d, dl.type, i + j * dl.leading, static_cast<float>(sum));
    }
  }
}

}  // namespace fake_cublaslt
