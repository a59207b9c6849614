#include "tensorrt/workspace.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "core/gemm_op.h"
#include "core/kernel_call.h"
#include "core/op_table.h"
#include "tensorrt/request.h"

namespace bertfuse::tensorrt {
namespace {

constexpr double kMaxSamples = 4096;  // a few milliseconds
constexpr size_t kMaxAxes = 3;        // no op has more; of one that has, the largest shapes are asked about
// With few rows a tactic may keep partial sums: four in float32, or a tile of 128x192 16-bit values for each
// multiprocessor.
constexpr size_t kBytesOfPartials = 16, kMaxBytesOfPartials = 8 << 20;

// The sizes that a free axis takes; axes with the same bounds vary together, as an op's batch does in all its tensors.
struct FreeAxis {
  int64_t low, high;
  std::vector<int64_t> sizes;
};

std::vector<int64_t> EverySize(int64_t low, int64_t high) {
  std::vector<int64_t> sizes(static_cast<size_t>(high - low + 1));
  std::iota(sizes.begin(), sizes.end(), low);
  return sizes;
}

// Both ends, and both sides of every power of two between them: where kernels are likely to change their mind.
std::vector<int64_t> Ladder(int64_t low, int64_t high) {
  std::vector<int64_t> sizes = {low, high};
  for (int64_t size = 1; size <= high; size *= 2) {
    for (int64_t near : {size - 1, size}) {
      if (near > low && near < high) sizes.push_back(near);
    }
    if (size > high / 2) break;
  }
  return sizes;
}

std::vector<FreeAxis> FreeAxes(const Profile& profile, int num_tensors) {
  std::vector<FreeAxis> axes;
  for (int t = 0; t < num_tensors; ++t) {
    const abi::Dims &low = profile[t].min, &high = profile[t].max;
    for (int i = 0; i < std::min(high.nbDims, abi::Dims::kMaxDims); ++i) {
      if (low.d[i] >= high.d[i]) continue;
      const bool known = std::any_of(axes.begin(), axes.end(), [&](const FreeAxis& axis) {
        return axis.low == low.d[i] && axis.high == high.d[i];
      });
      if (!known) axes.push_back({low.d[i], high.d[i], {}});
    }
  }
  if (axes.size() > kMaxAxes) return {};
  double combinations = 1;
  for (const FreeAxis& axis : axes) combinations *= static_cast<double>(axis.high - axis.low + 1);
  for (FreeAxis& axis : axes) {
    axis.sizes = combinations <= kMaxSamples ? EverySize(axis.low, axis.high) : Ladder(axis.low, axis.high);
  }
  return axes;
}

// A tensor's shape where every free axis has its size at that index of its sizes.
abi::Dims ShapeAt(const abi::DynamicPluginTensorDesc& tensor, const std::vector<FreeAxis>& axes,
                  const std::vector<size_t>& index) {
  abi::Dims shape = tensor.max;
  for (int i = 0; i < std::min(shape.nbDims, abi::Dims::kMaxDims); ++i) {
    for (size_t a = 0; a < axes.size(); ++a) {
      if (tensor.min.d[i] == axes[a].low && tensor.max.d[i] == axes[a].high) shape.d[i] = axes[a].sizes[index[a]];
    }
  }
  return shape;
}

bool Next(const std::vector<FreeAxis>& axes, std::vector<size_t>* index) {
  for (size_t a = 0; a < axes.size(); ++a) {
    if (++(*index)[a] < axes[a].sizes.size()) return true;
    (*index)[a] = 0;
  }
  return false;
}

// What a quantised product keeps of an x that it rounds itself: its rows in 8 bits and their scales.
size_t BytesOfRoundedX(const OpDef& op, const Form& form, const bertfuse_call& call) {
  if (form.weight_type == BERTFUSE_ABSENT) return 0;
  constexpr size_t kAlignment = 256;
  for (int i = 0; i < op.num_inputs; ++i) {
    if (std::strcmp(op.inputs[i].name, "x_quantized") != 0 || Has(form.present, i)) continue;
    const bertfuse_tensor& x = call.inputs[0];
    const auto elements = static_cast<size_t>(NumElements(x));
    const auto columns = static_cast<size_t>(std::max<int64_t>(1, x.rank < 1 ? 1 : x.shape[x.rank - 1]));
    return elements + elements / columns * sizeof(float) + 2 * kAlignment;
  }
  return 0;
}

}  // namespace

size_t WorkspaceFor(const OpDef& op, const bertfuse_kernel* kernel, int device, const bertfuse_value* attributes,
                    const Form& form, const Profile& profile, const CallSettings& settings) {
  if (kernel != nullptr && kernel->workspace_size == nullptr) return 0;
  const Request largest(op, attributes, form, settings,
                        [&](int tensor) { return profile.At(tensor, &abi::DynamicPluginTensorDesc::max); });
  size_t elements = 0;
  for (int i = 0; i < largest.call().num_outputs; ++i)
    elements += static_cast<size_t>(NumElements(largest.call().outputs[i]));
  // Behind a gated product another launch may multiply its factors, which lie in the workspace.
  const size_t enough = elements * sizeof(float) * (GemmOpOf(op).gates ? 2 : 1);
  const size_t for_parts = std::max(enough, std::min(elements * kBytesOfPartials, kMaxBytesOfPartials)) +
                           BytesOfRoundedX(op, form, largest.call());
  if (kernel == nullptr) return for_parts;
  if (device < 0) {
    try {
      return std::max(for_parts, WorkspaceSize(*kernel, largest.call()));
    } catch (const Error&) {
      return for_parts;  // what it needs depends on the device
    }
  }

  size_t most = 0;
  bool answered = false;
  const std::vector<FreeAxis> axes = FreeAxes(profile, Count(form.present) + largest.call().num_outputs);
  std::vector<size_t> index(axes.size(), 0);
  do {
    Request sample(op, attributes, form, settings, [&](int tensor) {
      abi::PluginTensorDesc description = profile[tensor].desc;
      description.dims = ShapeAt(profile[tensor], axes, index);
      return description;
    });
    sample.call().device_id = device;
    try {
      Validate(op, sample.call());
      most = std::max(most, WorkspaceSize(*kernel, sample.call()));
      answered = true;
    } catch (const Error&) {
      // Not a shape that the op can have: nothing to provide for. Or not a device that the kernel knows.
    }
  } while (Next(axes, &index));
  if (!answered) return for_parts;
  return most == 0 ? 0 : std::max(most, enough);
}

}  // namespace bertfuse::tensorrt
