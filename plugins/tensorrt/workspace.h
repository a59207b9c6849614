// How much scratch memory a layer asks its engine for.
#ifndef BERTFUSE_TENSORRT_WORKSPACE_H_
#define BERTFUSE_TENSORRT_WORKSPACE_H_

#include <cstddef>

#include "bertfuse/op.h"
#include "core/op_def.h"
#include "core/settings.h"
#include "tensorrt/abi.h"
#include "tensorrt/form.h"

namespace bertfuse::tensorrt {

// One optimisation profile's shapes of a layer: the present inputs, then the outputs.
struct Profile {
  const abi::DynamicPluginTensorDesc* inputs;
  int num_inputs;
  const abi::DynamicPluginTensorDesc* outputs;

  const abi::DynamicPluginTensorDesc& operator[](int tensor) const {
    return tensor < num_inputs ? inputs[tensor] : outputs[tensor - num_inputs];
  }
  // The tensor at its `min`, `opt` or `max`.
  abi::PluginTensorDesc At(int tensor, abi::Dims abi::DynamicPluginTensorDesc::* bound) const {
    abi::PluginTensorDesc description = (*this)[tensor].desc;
    description.dims = (*this)[tensor].*bound;
    return description;
  }
};

// What the kernel needs for any shape of the profile, in bytes. The largest shape does not always need the most: with
// few rows a kernel may split k over more blocks. So the kernel is asked for shapes all over the profile. Where it
// cannot be asked, because there is no GPU (or `kernel` is null), it is one float32 per element of output, which every
// op has a tactic for, and up to four within 8 MiB, which the choices for few rows want, beside what a quantised
// product rounds x into; a layer that gets less than it would like chooses a tactic that needs no more.
size_t WorkspaceFor(const OpDef& op, const bertfuse_kernel* kernel, int device, const bertfuse_value* attributes,
                    const Form& form, const Profile& profile, const CallSettings& settings = {});

}  // namespace bertfuse::tensorrt
#endif  // BERTFUSE_TENSORRT_WORKSPACE_H_
