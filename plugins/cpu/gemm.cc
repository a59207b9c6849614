// The ops of one matrix product.
#include "cpu/gemm.h"

#include "core/dtype.h"
#include "core/gemm_op.h"
#include "core/op_table.h"
#include "cpu/call.h"
#include "cpu/float8_gemm.h"
#include "cpu/int8_gemm.h"
#include "cpu/kernels.h"
#include "cpu/packed.h"
#include "cpu/quantize_result.h"
#include "cpu/rotary.h"
#include "cpu/vector_loops.h"

namespace bertfuse::cpu {
namespace {

// What x_zero, of 0 to 255, is among integers from -128 to 127; 0 without it.
int32_t ZeroOf(const GemmCall& gemm) {
  if (gemm.x_zero == nullptr) return 0;
  const int32_t zero = *static_cast<const int32_t*>(gemm.x_zero->data);
  if (zero < 0 || zero > 255) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input 'x_zero' is %d, expected 0 to 255", gemm.op.name, zero);
  }
  return zero - 128;
}

const float* DataOf(const bertfuse_tensor* tensor) { return tensor == nullptr ? nullptr : FloatData(*tensor); }

bool IsInt8(const GemmCall& gemm) { return gemm.weight->dtype == BERTFUSE_INT8; }

bool IsFloat8(const GemmCall& gemm) { return gemm.weight->dtype == BERTFUSE_FLOAT8E4M3FN; }

void CheckWeight(const GemmCall& gemm) {
  if (IsInt8(gemm) && gemm.weight->shape[1] > kMaxInt8Depth) {
    Fail(BERTFUSE_NOT_SUPPORTED, "%s: input 'weight' is int8 and has %lld columns, expected at most %lld", gemm.op.name,
         static_cast<long long>(gemm.weight->shape[1]), static_cast<long long>(kMaxInt8Depth));
  }
}

void CheckZero(const GemmCall& gemm) {
  if (!IsFloat8(gemm) || (gemm.x_zero == nullptr && gemm.x_compensation == nullptr)) return;
  Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input '%s' is given beside a weight of float8e4m3fn", gemm.op.name,
       gemm.x_zero == nullptr ? "x_compensation" : "x_zero");
}

void CheckSmooth(const GemmCall& gemm) {
  if (gemm.x_smooth == nullptr || gemm.x_smooth->shape[0] == 1) return;
  Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input 'x_smooth' has %lld rows, expected 1", gemm.op.name,
       static_cast<long long>(gemm.x_smooth->shape[0]));
}

// What is taken off the sums of integers, with zeros up to whole tiles.
const int32_t* Compensation(const GemmCall& gemm, Arena& arena) {
  if (gemm.x_compensation == nullptr) return nullptr;
  const int64_t n = gemm.weight->shape[0], step = Loops().tile_columns;
  auto* const padded = arena.Take<int32_t>(CeilDiv(n, step) * step);
  if (padded == nullptr) return nullptr;  // the room is counted
  const auto* const given = static_cast<const int32_t*>(gemm.x_compensation->data);
  std::fill(std::copy(given, given + n, padded), padded + CeilDiv(n, step) * step, 0);
  return padded;
}

// Room for x, given as integers, as floats.
int64_t FloatsOfQuantized(const GemmCall& gemm) {
  return gemm.x_quantized == nullptr ? 0 : gemm.rows() * gemm.weight->shape[1];
}

template <class Finish>
void MultiplyFloat8(const bertfuse_call& call, const GemmCall& gemm, int64_t m, float* y, Arena& arena,
                    Finish&& finish) {
  const int64_t n = gemm.weight->shape[0], k = gemm.weight->shape[1];
  const Float8Buffers buffers(gemm.rows(), n, k, call.prepared != nullptr, arena);
  if (call.prepared == nullptr) {
    ParallelFor(call, n * k, kGrainElements,
                [&](int64_t begin, int64_t end) { ConvertFloat8(gemm.weight->data, begin, end, buffers.weight); });
  }
  const float *x = DataOf(gemm.x), *scale = DataOf(gemm.x_scale), *smooth = DataOf(gemm.x_smooth);
  ParallelFor(call, m, GrainFor(k), [&](int64_t begin, int64_t end) {
    if (gemm.x_quantized != nullptr) ConvertFloat8(gemm.x_quantized->data, begin * k, end * k, buffers.x);
    for (int64_t row = begin; row < end; ++row) {
      if (gemm.x_quantized != nullptr) {
        buffers.scales[row] = FloatData(*gemm.x_row_scale)[row];
        continue;
      }
      buffers.scales[row] = RoundRowToFloat8(x + row * k, smooth, k, scale, buffers.x + row * k);
    }
  });
  const auto* weight = call.prepared == nullptr ? buffers.weight : static_cast<const float*>(call.prepared);
  Float8Gemm(call, m, n, k, buffers, weight, DataOf(gemm.weight_scale), y, finish);
}

// y = x weightᵀ; `finish` as Gemm has it.
template <class Finish>
void Multiply(const bertfuse_call& call, const GemmCall& gemm, int64_t m, float* y, Arena& arena, Finish&& finish) {
  const int64_t n = gemm.weight->shape[0], k = gemm.weight->shape[1];
  const float* x = DataOf(gemm.x);
  if (IsFloat8(gemm)) return MultiplyFloat8(call, gemm, m, y, arena, finish);
  if (!IsInt8(gemm)) return Gemm(call, m, n, k, x, {{DataOf(gemm.weight), y}}, finish);
  const Int8Buffers buffers(gemm.rows(), n, k, call.prepared != nullptr, arena);
  if (call.prepared == nullptr) {
    Loops().pack_int8(static_cast<const int8_t*>(gemm.weight->data), n, k, buffers.packed);
  }
  const void* packed = call.prepared == nullptr ? buffers.packed : call.prepared;
  Int8Rows rows = buffers.x;
  rows.zero = ZeroOf(gemm), rows.sums = Loops().weight_sums(packed, n, k);
  const float *scale = DataOf(gemm.x_scale), *smooth = DataOf(gemm.x_smooth);
  float* const as_floats = arena.Take<float>(FloatsOfQuantized(gemm));
  const int32_t* const compensation = Compensation(gemm, arena);
  if (compensation != nullptr) rows.zero = 1, rows.sums = compensation;
  ParallelFor(call, m, GrainFor(k), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      char* to = static_cast<char*>(rows.rows) + row * rows.stride;
      if (gemm.x_quantized != nullptr) {  // as the loops want integers
        constexpr float kOne = 1.0f;
        float* const floats = as_floats + row * k;
        Loops().int8_to_float(static_cast<const int8_t*>(gemm.x_quantized->data) + row * k, kOne, floats, k);
        constexpr int32_t kNoZero = 0;
        Loops().quantize_row(floats, nullptr, k, &kOne, kNoZero, to, &rows.offsets[row]);
        rows.scales[row] = FloatData(*gemm.x_row_scale)[row];
        continue;
      }
      rows.scales[row] = Loops().quantize_row(x + row * k, smooth, k, scale, rows.zero, to, &rows.offsets[row]);
    }
  });
  Int8Gemm(call, m, n, rows, packed, DataOf(gemm.weight_scale), y, finish);
}

// Room for a gated product's second factor, which is multiplied with the gate while a block of both is in the cache; of
// 8-bit operands for both of them.
float* TakeFactors(const GemmCall& gemm, Arena& arena) {
  return arena.Take<float>(gemm.rows() * gemm.columns() * (IsQuantized(gemm.weight->dtype) ? 2 : 1));
}

// Room for a residual, given in 8 bits, as floats.
float* TakeResidual(const GemmCall& gemm, Arena& arena) {
  return arena.Take<float>(gemm.residual_quantized == nullptr ? 0 : gemm.rows() * gemm.columns());
}

// Rows [begin, end) of that residual.
void RestoreResidual(const GemmCall& gemm, int64_t begin, int64_t end, float* to) {
  const int64_t n = gemm.columns();
  const float* const factor = DataOf(gemm.residual_factor);
  const void* const numbers = gemm.residual_quantized->data;
  const bool integers = gemm.residual_quantized->dtype == BERTFUSE_INT8;
  if (!integers) ConvertFloat8(numbers, begin * n, end * n, to);
  for (int64_t row = begin; row < end; ++row) {
    constexpr float kOne = 1.0f;
    float* const values = to + row * n;
    if (integers) Loops().int8_to_float(static_cast<const int8_t*>(numbers) + row * n, kOne, values, n);
    const float scale = FloatData(*gemm.residual_row_scale)[row];
    for (int64_t i = 0; i < n; ++i) values[i] *= factor == nullptr ? scale : scale * factor[i];
  }
}

template <class Op>
size_t WorkspaceSize(const bertfuse_call& call) {
  const GemmCall gemm(call, kGemmOp<Op>);
  CheckWeight(gemm);
  CheckSmooth(gemm);
  CheckZero(gemm);
  Arena arena;
  TakeResidual(gemm, arena);
  if (gemm.op.gates) TakeFactors(gemm, arena);
  if (!IsQuantized(gemm.weight->dtype)) return arena.used();
  const int64_t n = gemm.weight->shape[0], k = gemm.weight->shape[1];
  if (IsFloat8(gemm)) {
    Float8Buffers(gemm.rows(), n, k, call.prepared != nullptr, arena);
  } else {
    Int8Buffers(gemm.rows(), n, k, call.prepared != nullptr, arena);
    arena.Take<float>(FloatsOfQuantized(gemm));
    Compensation(gemm, arena);
  }
  return arena.used();
}

// y *= up, each with its bias, after the activation of y.
void MultiplyFactors(const GemmCall& gemm, float* y, float* up, int64_t column, int64_t width) {
  const float* const bias = DataOf(gemm.bias);
  Loops().activate(y, bias == nullptr ? nullptr : bias + column, width, gemm.activation);
  if (bias != nullptr) Loops().activate(up, bias + gemm.columns() + column, width, Activation::kNone);
  Loops().multiply(y, up, y, width);
}

// y = activation(x Gᵀ + g) * (x Uᵀ + u).
void RunGated(const bertfuse_call& call, const GemmCall& gemm, int64_t m) {
  const int64_t n = gemm.columns(), k = gemm.weight->shape[1];
  float* const y = static_cast<float*>(gemm.y->data);
  Arena arena(call.workspace);
  float* const factors = TakeFactors(gemm, arena);
  if (!IsQuantized(gemm.weight->dtype)) {
    const float* const weight = DataOf(gemm.weight);
    const GemmPart parts[] = {{weight, y}, {weight + n * k, factors}};
    return Gemm(call, m, n, k, DataOf(gemm.x), parts, [&](int64_t row, int64_t height, int64_t column, int64_t width) {
      for (int64_t at = row * n + column, i = 0; i < height; ++i, at += n) {
        MultiplyFactors(gemm, y + at, factors + at, column, width);
      }
    });
  }
  Multiply(call, gemm, m, factors, arena, [](int64_t, int64_t, int64_t, int64_t) {});
  ParallelFor(call, m, GrainFor(n), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* const both = factors + row * 2 * n;
      std::copy(both, both + n, y + row * n);
      MultiplyFactors(gemm, y + row * n, both + n, 0, n);
    }
  });
}

// Heads of Q and K of y's rows, each by its place.
void Rotate(const bertfuse_call& call, const GemmCall& gemm, int64_t m) {
  const float *const cos = DataOf(gemm.cos), *const sin = DataOf(gemm.sin);
  float* const y = static_cast<float*>(gemm.y->data);
  const int64_t n = gemm.columns(), table_rows = gemm.cos->shape[0], sequence = gemm.x->shape[1];
  const auto* const places = gemm.places == nullptr ? nullptr : static_cast<const int32_t*>(gemm.places->data);
  const int64_t all_places = gemm.places_in_batch ? gemm.rows() : table_rows;
  for (int64_t row = 0; places != nullptr && row < m; ++row) {
    if (places[row] >= 0 && places[row] < all_places) continue;
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input 'places' holds %d at %lld, expected 0 to %lld, of the %s", gemm.op.name,
         places[row], static_cast<long long>(row), static_cast<long long>(all_places - 1),
         gemm.places_in_batch ? "padded batch" : "rows of cos");
  }
  ParallelFor(call, m, GrainFor(n), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t place = places == nullptr ? row : places[row];
      const int64_t at = (places == nullptr || gemm.places_in_batch ? place % sequence : place) * gemm.rotated;
      for (int64_t head = 0; head < gemm.heads + gemm.kv_heads; ++head) {
        RotateHead(cos + at, sin + at, gemm.rotated, gemm.neighbours, y + row * n + head * gemm.head_size);
      }
    }
  });
}

template <class Op>
void Run(const bertfuse_call& call) {
  const GemmCall gemm(call, kGemmOp<Op>);
  const int64_t m = RealRows(gemm.op.name, *gemm.row_count, gemm.rows());
  if (gemm.op.gates) return RunGated(call, gemm, m);
  const float *residual = DataOf(gemm.residual), *gamma = DataOf(gemm.gamma), *beta = DataOf(gemm.beta);
  const float* const product_gamma = DataOf(gemm.product_gamma);
  float* y = static_cast<float*>(gemm.y->data);
  float* total = gemm.total == nullptr ? nullptr : static_cast<float*>(gemm.total->data);
  const int64_t n = gemm.columns();
  const Activation activation = gemm.activation;
  const bool activates = activation != Activation::kNone, normalizes = gemm.op.normalizes();
  const float* bias = DataOf(gemm.bias);
  const bool in_blocks = activates || (bias != nullptr && !normalizes);
  Arena arena(call.workspace);
  float* const restored = TakeResidual(gemm, arena);
  if (gemm.residual_quantized != nullptr) residual = restored;
  Multiply(call, gemm, m, y, arena, [=](int64_t row, int64_t height, int64_t column, int64_t width) {
    if (!in_blocks) return;
    float* to = y + row * n + column;
    for (int64_t i = 0; i < height; ++i, to += n) {
      Loops().activate(to, bias == nullptr ? nullptr : bias + column, width, activation);
    }
  });
  if (gemm.cos != nullptr) return Rotate(call, gemm, m);
  if (!normalizes) return;
  ParallelFor(
      call, m, GrainFor(n),
      [=, &gemm, epsilon = gemm.epsilon, rms = gemm.rms, gamma_offset = gemm.gamma_offset](int64_t begin, int64_t end) {
        if (gemm.residual_quantized != nullptr) RestoreResidual(gemm, begin, end, restored);
        for (int64_t row = begin; row < end; ++row) {
          const int64_t at = row * n;
          Loops().norm({y + at, activates ? nullptr : bias, residual == nullptr ? nullptr : residual + at, gamma, beta,
                        total == nullptr ? nullptr : total + at, n, epsilon, rms, product_gamma, gamma_offset});
        }
      });
}

// What is prepared is the packed weight; of 8-bit floats the weight in float32.
template <class Op>
size_t PreparedSize(const bertfuse_call& call) {
  const GemmCall gemm(call, kGemmOp<Op>);
  const bool constant = (call.constant_inputs >> gemm.op.weight & 1) != 0;
  if (!constant || gemm.weight == nullptr || !IsQuantized(gemm.weight->dtype) || gemm.weight->rank != 2) return 0;
  CheckWeight(gemm);
  if (IsFloat8(gemm)) return static_cast<size_t>(NumElements(*gemm.weight)) * sizeof(float);
  return static_cast<size_t>(Loops().packed_bytes(gemm.weight->shape[0], gemm.weight->shape[1]));
}

template <class Op>
void Prepare(const bertfuse_call& call, void* prepared) {
  const bertfuse_tensor& weight = call.inputs[kGemmOp<Op>.weight];
  if (weight.dtype == BERTFUSE_FLOAT8E4M3FN) {
    return ConvertFloat8(weight.data, 0, NumElements(weight), static_cast<float*>(prepared));
  }
  Loops().pack_int8(static_cast<const int8_t*>(weight.data), weight.shape[0], weight.shape[1], prepared);
}

template <class Op>
constexpr Float32Kernel kFloat32 = {WorkspaceSize<Op>, Run<Op>};

// y's rows in 8 bits follow from y in its own type.
template <class Op>
void RunWithQuantized(const bertfuse_call& call) {
  RunAnyFloat(call, kFloat32<Op>);
  if constexpr (kGemmOp<Op>.y_quantized >= 0) {
    const GemmCall gemm(call, kGemmOp<Op>);
    QuantizeResult<Op>(call, RealRows(Op::kName, *gemm.row_count, gemm.rows()), DataOf(gemm.y_tensor_scale));
  }
}

template <class Op>
constexpr bertfuse_kernel Product() {
  bertfuse_kernel kernel = CpuKernel<Op, WorkspaceOf<kFloat32<Op>>, RunWithQuantized<Op>>();
  kernel.prepared_size = [](const bertfuse_call* call, size_t* bytes, bertfuse_error* error) -> int32_t {
    return Guarded(error, [&] {
      CheckCallSize(Op::kName, *call);
      *bytes = PreparedSize<Op>(*call);
    });
  };
  kernel.prepare = [](const bertfuse_call* call, void* prepared, bertfuse_error* error) -> int32_t {
    return Guarded(error, [&] {
      CheckCallSize(Op::kName, *call);
      Prepare<Op>(*call, prepared);
    });
  };
  return kernel;
}

}  // namespace

const bertfuse_kernel kFusedGatedGemm = Product<FusedGatedGemm>();
const bertfuse_kernel kFusedGemm = Product<FusedGemm>();
const bertfuse_kernel kFusedGemmGelu = Product<FusedGemmGelu>();
const bertfuse_kernel kFusedGemmGeluLayerNorm = Product<FusedGemmGeluLayerNorm>();
const bertfuse_kernel kFusedGemmLayerNorm = Product<FusedGemmLayerNorm>();
const bertfuse_kernel kFusedGemmResidualNorm = Product<FusedGemmResidualNorm>();
const bertfuse_kernel kFusedGemmRotary = Product<FusedGemmRotary>();

}  // namespace bertfuse::cpu
