// The element types that tensors have, one list. From it come the ABI's enumeration (op.h), names, sizes and the step
// to a type that is known at compile time (core/dtype.h), TensorRT's types (tensorrt/request.cc), and which kernels are
// compiled (plugins/kernels, cmake/CudaKernels.cmake). (Macros, so that a user of one column needs no header of
// another.)
//
// X(enumerator, number in ONNX's TensorProto.DataType, name, bytes, nvinfer1::DataType, C++ type in kernels)
#ifndef BERTFUSE_DTYPES_H_
#define BERTFUSE_DTYPES_H_

// Types that Ampere's and Hopper's tensor cores multiply as they are.
#define BERTFUSE_HALF_DTYPES(X)               \
  X(FLOAT16, 10, "float16", 2, kHALF, __half) \
  X(BFLOAT16, 16, "bfloat16", 2, kBF16, __nv_bfloat16)

#define BERTFUSE_FLOAT_DTYPES(X)             \
  X(FLOAT32, 1, "float32", 4, kFLOAT, float) \
  BERTFUSE_HALF_DTYPES(X)

#define BERTFUSE_INDEX_DTYPES(X)           \
  X(INT32, 6, "int32", 4, kINT32, int32_t) \
  X(INT64, 7, "int64", 8, kINT64, int64_t)

// Of weights that have scales.
#define BERTFUSE_QUANTIZED_DTYPES(X)   \
  X(INT8, 3, "int8", 1, kINT8, int8_t) \
  X(FLOAT8E4M3FN, 17, "float8e4m3fn", 1, kFP8, __nv_fp8_e4m3)

#define BERTFUSE_DTYPES(X) BERTFUSE_FLOAT_DTYPES(X) BERTFUSE_INDEX_DTYPES(X) BERTFUSE_QUANTIZED_DTYPES(X)

#endif  // BERTFUSE_DTYPES_H_
