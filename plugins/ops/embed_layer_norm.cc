#include "kernels/embed_layer_norm.h"

#include "core/op_table.h"
#include "op_table.generated.h"
#include "ops/call.h"
#include "ops/packed_rows.h"
#include "ops/quantized_result.h"

namespace bertfuse::cuda {
namespace {

using Op = EmbedLayerNorm;

void Run(const bertfuse_call& call) {
  const bertfuse_tensor* in = call.inputs;
  if (in[Op::In::word_table].dtype == BERTFUSE_FLOAT8E4M3FN) {
    Fail(BERTFUSE_NOT_SUPPORTED,
         "%s: input 'word_table' is float8e4m3fn, for which there is no CUDA kernel: int8 has one", Op::kName);
  }
  SwitchElement(in[Op::In::gamma].dtype, [&](auto element) {
    using T = decltype(element);
    SwitchIndex(in[Op::In::ids].dtype, [&](auto index) {
      using Index = decltype(index);
      kernels::EmbedLayerNormArguments<T, Index> a = {};
      a.ids = Data<Index>(in[Op::In::ids]);
      a.token_type_ids = Data<Index>(in[Op::In::token_type_ids]);
      a.position_ids = Data<Index>(in[Op::In::position_ids]);
      a.token_index = Data<const int32_t>(in[Op::In::token_index]);
      if (in[Op::In::word_table].dtype == BERTFUSE_INT8) {
        a.word_integers = Data<const int8_t>(in[Op::In::word_table]);
        a.word_scales = Data<const float>(in[Op::In::word_scale]);
      } else {
        a.word_table = Data<T>(in[Op::In::word_table]);
      }
      a.token_type_table = Data<T>(in[Op::In::token_type_table]);
      a.position_table = Data<T>(in[Op::In::position_table]);
      a.gamma = Data<T>(in[Op::In::gamma]);
      a.beta = Data<T>(in[Op::In::beta]);
      a.y = Data<T>(call.outputs[Op::Out::y]);
      a.rows = NumElements(in[Op::In::ids]);
      a.sequence = in[Op::In::ids].shape[1];
      a.words = in[Op::In::word_table].shape[0];
      a.columns = in[Op::In::word_table].shape[1];
      a.token_types = a.token_type_table == nullptr ? 0 : in[Op::In::token_type_table].shape[0];
      a.positions = a.position_table == nullptr ? 0 : in[Op::In::position_table].shape[0];
      a.packed = PackedRowsOf(call, in[Op::In::row_count], a.rows);
      a.deterministic_rows = (call.flags & BERTFUSE_DETERMINISTIC_ROWS) != 0;
      a.epsilon = call.attributes[Op::Attr::epsilon].f;
      if (!kernels::EmbedLayerNormSupports(a)) FailTooWide(Op::kName, a.columns);
      CheckCuda(kernels::EmbedLayerNorm(a, DeviceOf(call), StreamOf(call)), Op::kName);
      if (call.num_outputs <= Op::Out::y_quantized) return;
      // By a kernel of its own: one of a whole encoder's.
      const kernels::QuantizedResult to =
          QuantizedResultOf(Op::kName, &call.outputs[Op::Out::y_quantized], &call.outputs[Op::Out::y_scale],
                            &in[Op::In::y_smooth], nullptr, nullptr);
      QuantizeResult(call, Op::kName, to, a.y, a.rows, a.columns, a.packed);
    });
  });
}

}  // namespace

const bertfuse_kernel kEmbedLayerNorm = CudaKernel<Op, Run>();

}  // namespace bertfuse::cuda
