#include <atomic>

#include "core/dtype.h"
#include "core/op_table.h"
#include "cpu/call.h"
#include "cpu/kernels.h"
#include "cpu/packed.h"
#include "cpu/quantize_result.h"
#include "cpu/vector_loops.h"
#include "op_table.generated.h"

namespace bertfuse::cpu {
namespace {

using Op = EmbedLayerNorm;

// Tables stay in their dtype and are converted row by row: a whole vocabulary is no scratch. Sums are kept in float32.
struct Buffers {
  Buffers(const bertfuse_call& call, Arena& arena) {
    const bertfuse_tensor& out = call.outputs[Op::Out::y];
    const int64_t hidden = out.shape[2];
    const bool converted = out.dtype != BERTFUSE_FLOAT32;
    gamma = arena.Take<float>(converted ? hidden : 0);
    beta = arena.Take<float>(converted ? hidden : 0);
    y = arena.Take<float>(converted ? NumElements(out) : 0);
    row = arena.Take<float>(converted ? NumElements(out) : 0);
  }
  float* gamma;
  float* beta;
  float* y;
  float* row;
};

// In place of a source's number.
constexpr int kNone = -1, kTokenIndex = -2;

// The first index out of range, kept for the message: what an operator's body may not throw on a host thread.
struct OutOfRange {
  std::atomic<int> input{kNone};
  std::atomic<int64_t> index{0};

  void Record(int which, int64_t value) {
    int none = kNone;
    if (input.compare_exchange_strong(none, which)) index = value;
  }
};

// An index into a table, as ONNX Gather takes it: negative counts from the end. -1 where it is out of range.
int64_t Wrap(int64_t index, int64_t size) {
  const int64_t wrapped = index < 0 ? index + size : index;
  return wrapped < 0 || wrapped >= size ? -1 : wrapped;
}

int64_t IndexAt(const bertfuse_tensor& ids, int64_t at) {
  return ids.dtype == BERTFUSE_INT64 ? static_cast<const int64_t*>(ids.data)[at]
                                     : static_cast<const int32_t*>(ids.data)[at];
}

const void* RowOf(const bertfuse_tensor& table, int64_t row) { return ElementAt(table, row * table.shape[1]); }

// One of the three embeddings that a row sums.
struct Source {
  int ids;  // input index; -1: the place in the sequence
  int table;
};

void RunRows(const bertfuse_call& call, const Buffers& buffers, OutOfRange& out_of_range) {
  const bertfuse_tensor& out = call.outputs[Op::Out::y];
  const int64_t sequence = out.shape[1], hidden = out.shape[2];
  const bool converted = out.dtype != BERTFUSE_FLOAT32;
  const float* gamma = converted ? buffers.gamma : FloatData(call.inputs[Op::In::gamma]);
  const float* beta = converted ? buffers.beta : FloatData(call.inputs[Op::In::beta]);
  float* y = converted ? buffers.y : static_cast<float*>(out.data);

  Source sources[3] = {{Op::In::ids, Op::In::word_table}};
  int num_sources = 1;
  if (call.inputs[Op::In::token_type_ids].dtype != BERTFUSE_ABSENT) {
    sources[num_sources++] = {Op::In::token_type_ids, Op::In::token_type_table};
  }
  if (call.inputs[Op::In::position_table].dtype != BERTFUSE_ABSENT) {
    const bool given = call.inputs[Op::In::position_ids].dtype != BERTFUSE_ABSENT;
    sources[num_sources++] = {given ? static_cast<int>(Op::In::position_ids) : -1, Op::In::position_table};
  }

  const float* word_scale = FloatData(call.inputs[Op::In::word_scale]);
  const float epsilon = call.attributes[Op::Attr::epsilon].f;
  const int64_t all = out.shape[0] * sequence;
  const auto* token_index = static_cast<const int32_t*>(
      call.inputs[Op::In::token_index].dtype == BERTFUSE_ABSENT ? nullptr : call.inputs[Op::In::token_index].data);
  const int64_t rows = RealRows(Op::kName, call.inputs[Op::In::row_count], all);
  ParallelFor(call, rows, GrainFor(4 * hidden), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* sum = y + row * hidden;
      const int64_t token = token_index == nullptr ? row : token_index[row];
      if (token < 0 || token >= all) {
        out_of_range.Record(kTokenIndex, token);
        return;
      }
      for (int i = 0; i < num_sources; ++i) {
        const bertfuse_tensor& table = call.inputs[sources[i].table];
        const int64_t index = sources[i].ids < 0 ? token % sequence : IndexAt(call.inputs[sources[i].ids], token);
        const int64_t wrapped = Wrap(index, table.shape[0]);
        if (wrapped < 0) {
          out_of_range.Record(i, index);
          return;
        }
        const void* from = RowOf(table, wrapped);
        if (i == 0 && word_scale != nullptr) {
          Loops().int8_to_float(static_cast<const int8_t*>(from), word_scale[wrapped], sum, hidden);
        } else if (i == 0) {
          ToFloat(table.dtype, from, sum, hidden);
        } else if (converted) {
          ToFloat(table.dtype, from, buffers.row + row * hidden, hidden);
          Loops().add(sum, buffers.row + row * hidden, sum, hidden);
        } else {
          Loops().add(sum, static_cast<const float*>(from), sum, hidden);
        }
      }
      Loops().norm({sum, nullptr, nullptr, gamma, beta, nullptr, hidden, epsilon, false});
      if (converted) FromFloat(out.dtype, sum, ElementAt(out, row * hidden), hidden);
    }
  });
  if (out_of_range.input == kNone) return;
  if (out_of_range.input == kTokenIndex) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input 'token_index' holds %lld, expected a place among %lld tokens", Op::kName,
         static_cast<long long>(out_of_range.index), static_cast<long long>(all));
  }
  const Source& bad = sources[out_of_range.input];
  const OpDef& op = *FindOp(Op::kName);
  const char* table = op.inputs[bad.table].name;
  const long long value = out_of_range.index, size = call.inputs[bad.table].shape[0];
  if (bad.ids < 0) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: the sequence has %lld tokens, but '%s' only %lld rows", Op::kName,
         static_cast<long long>(sequence), table, size);
  }
  Fail(BERTFUSE_INVALID_ARGUMENT, "%s: input '%s' holds the index %lld, but '%s' has %lld rows", Op::kName,
       op.inputs[bad.ids].name, value, table, size);
}

size_t NeededWorkspace(const bertfuse_call& call) {
  Arena arena;
  Buffers(call, arena);
  return arena.used();
}

void RunEmbedding(const bertfuse_call& call) {
  const int32_t words = call.inputs[Op::In::word_table].dtype;
  if (IsQuantized(words) && words != BERTFUSE_INT8) {
    Fail(BERTFUSE_NOT_SUPPORTED,
         "%s: input 'word_table' is %s, for which there is no CPU kernel; the op's body runs it", Op::kName,
         DtypeName(words));
  }
  RequireWorkspace(call, NeededWorkspace(call));
  Arena arena(call.workspace);
  const Buffers buffers(call, arena);
  const bertfuse_tensor& gamma = call.inputs[Op::In::gamma];
  if (gamma.dtype != BERTFUSE_FLOAT32) {
    ToFloat(gamma.dtype, gamma.data, buffers.gamma, gamma.shape[0]);
    ToFloat(gamma.dtype, call.inputs[Op::In::beta].data, buffers.beta, gamma.shape[0]);
  }
  OutOfRange out_of_range;
  RunRows(call, buffers, out_of_range);
  const int64_t all = NumElements(call.inputs[Op::In::ids]);
  QuantizeResult<Op>(call, RealRows(Op::kName, call.inputs[Op::In::row_count], all));
}

}  // namespace

const bertfuse_kernel kEmbedLayerNorm = CpuKernel<Op, NeededWorkspace, RunEmbedding>();

}  // namespace bertfuse::cpu
