#include "tensorrt/plugin.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/dtype.h"
#include "core/kernel_call.h"
#include "core/op_table.h"
#include "op_table.generated.h"
#include "tensorrt/arrange.h"
#include "tensorrt/bounds.h"
#include "tensorrt/device.h"
#include "tensorrt/shapes.h"
#include "tensorrt/workspace.h"

namespace bertfuse::tensorrt {
namespace {

using Numbers = std::array<int32_t, kMaxTensors>;

// As the environment has them, read once. TensorRT has no way to hand them to a layer.
const CallSettings& EnvironmentSettings() {
  static const CallSettings settings = [] {
    CallSettings read;
    read.flags = Tf32Flags(FromEnvironment(kTf32Variable), kTf32Variable) |
                 RowHintFlags(FromEnvironment(kRowHintsVariable), kRowHintsVariable) |
                 DeterministicRowsFlags(FromEnvironment(kDeterministicRowsVariable), kDeterministicRowsVariable) |
                 CublasLtFlags(FromEnvironment(kCublasLtVariable), kCublasLtVariable);
    const std::string tuning = FromEnvironment(kTuningVariable);
    if (!tuning.empty()) read.tuning = MakeTuning(ReadTuningFile(tuning), tuning);
    return read;
  }();
  return settings;
}

// value_of(i) for every tensor of the layer's inputs. Throws where there are more than any op has.
template <class ValueOf>
Numbers Gather(const OpDef& op, int32_t count, ValueOf&& value_of) {
  if (count < 0 || count > kMaxTensors) {
    Fail(BERTFUSE_INVALID_ARGUMENT, "%s: %d inputs, expected at most %d", op.name, count, op.num_inputs);
  }
  Numbers numbers = {};
  for (int32_t i = 0; i < count; ++i) numbers[i] = value_of(i);
  return numbers;
}

// The dtypes of variables that the layer's inputs, of these dtypes, bind.
DtypeBinder Bound(const OpDef& op, const Form& form, const Numbers& dtypes) {
  DtypeBinder binder(op);
  for (int i = 0, place = 0; i < op.num_inputs; ++i) {
    if (!Has(form.present, i)) continue;
    binder.Bind(op.inputs[i], "input", RestoredDtype(op, form, op.inputs[i], "input", dtypes[place++]));
  }
  return binder;
}

}  // namespace

Plugin::Plugin(const OpDef& op, const char* layer, std::shared_ptr<const Fields> fields, const Built& built)
    : op_(op),
      kernel_(bertfuse_find_kernel(op.name, BERTFUSE_CUDA)),
      where_(Where(layer)),
      fields_(std::move(fields)),
      settings_(EnvironmentSettings()),
      built_(built) {
  if (op.num_inputs > kMaxTensors || op.num_outputs + op.num_quantized_outputs > kMaxTensors) {
    Fail(BERTFUSE_RUNTIME_ERROR, "%s: more than %d tensors", op.name, kMaxTensors);
  }
}

abi::IPluginCapability* Plugin::getCapabilityInterface(abi::PluginCapabilityType type) noexcept {
  switch (type) {
    case abi::PluginCapabilityType::kCORE:
      return static_cast<abi::IPluginV3OneCore*>(this);
    case abi::PluginCapabilityType::kBUILD:
      return static_cast<abi::IPluginV3OneBuild*>(this);
    case abi::PluginCapabilityType::kRUNTIME:
      return static_cast<abi::IPluginV3OneRuntime*>(this);
  }
  return nullptr;
}

abi::IPluginV3* Plugin::clone() noexcept {
  Plugin* copy = nullptr;
  Checked([&] { copy = new Plugin(*this); });
  return copy;
}

const char* Plugin::getPluginName() const noexcept { return op_.name; }
const char* Plugin::getPluginVersion() const noexcept { return kPluginVersion; }
const char* Plugin::getPluginNamespace() const noexcept { return kDomain; }
int32_t Plugin::getNbOutputs() const noexcept { return NumOutputs(op_, fields_->form().present); }
const char* Plugin::getTimingCacheID() noexcept { return fields_->text().c_str(); }
const char* Plugin::getMetadataString() noexcept { return fields_->text().c_str(); }

void Plugin::CheckNumInputs(int32_t count) const {
  const Present given = fields_->form().present;
  if (given == 0 || count == Count(given)) return;
  Fail(BERTFUSE_INVALID_ARGUMENT, "%s: %d inputs, expected %d by field 'given_inputs'", op_.name, count, Count(given));
}

void Plugin::CheckNumOutputs(int32_t count) const {
  if (count == getNbOutputs()) return;
  Fail(BERTFUSE_INVALID_ARGUMENT, "%s: %d outputs, expected %d", op_.name, count, getNbOutputs());
}

Form Plugin::FormOf(int32_t num_inputs, const int32_t* dtypes, const int32_t* ranks) const {
  CheckNumInputs(num_inputs);
  Form form = fields_->form();
  if (form.present == 0) form.present = FindPresent(op_, num_inputs, dtypes, ranks);
  return form;
}

// description_of(i) is the abi::PluginTensorDesc of input i.
template <class DescriptionOf>
Form Plugin::FormOf(int32_t num_inputs, DescriptionOf&& description_of) const {
  const Numbers dtypes = Gather(op_, num_inputs, [&](int i) { return DtypeOf(description_of(i).type); });
  const Numbers ranks = Gather(op_, num_inputs, [&](int i) { return description_of(i).dims.nbDims; });
  return FormOf(num_inputs, dtypes.data(), ranks.data());
}

Form Plugin::BuiltForm() const {
  Form form = fields_->form();
  form.present = static_cast<Present>(built_.present);
  return form;
}

int32_t Plugin::getOutputDataTypes(abi::DataType* outputTypes, int32_t nbOutputs, const abi::DataType* inputTypes,
                                   int32_t nbInputs) const noexcept {
  return Checked([&] {
    CheckNumOutputs(nbOutputs);
    const Numbers dtypes = Gather(op_, nbInputs, [&](int i) { return DtypeOf(inputTypes[i]); });
    const Form form = FormOf(nbInputs, dtypes.data(), nullptr);
    const DtypeBinder bound = Bound(op_, form, dtypes);
    for (int i = 0; i < nbOutputs; ++i) {
      const TensorDef& output = op_.outputs[i];
      outputTypes[i] = DataTypeOf(form.Crossing(output, bound.Of(output.dtype)));
    }
  });
}

int32_t Plugin::getOutputShapes(const abi::DimsExprs* inputs, int32_t nbInputs, const abi::DimsExprs*,
                                int32_t nbShapeInputs, abi::DimsExprs* outputs, int32_t nbOutputs,
                                abi::IExprBuilder& exprBuilder) noexcept {
  return Checked([&] {
    CheckNumOutputs(nbOutputs);
    if (nbShapeInputs != 0) {
      Fail(BERTFUSE_INVALID_ARGUMENT, "%s: %d shape inputs, expected none", op_.name, nbShapeInputs);
    }
    const Numbers ranks = Gather(op_, nbInputs, [&](int i) { return inputs[i].nbDims; });
    CheckNumInputs(nbInputs);
    Form form = fields_->form();
    if (form.present != 0) return ExpressOutputs(op_, fields_->values(), form, inputs, outputs, exprBuilder);
    // Of several readings the first whose sizes agree: outputs hang on inputs that all of them have in common.
    const std::vector<Present> readings = ReadingsOf(op_, nbInputs, ranks.data());
    for (const Present present : readings) {
      form.present = present;
      try {
        return ExpressOutputs(op_, fields_->values(), form, inputs, outputs, exprBuilder);
      } catch (const Error&) {
        if (present == readings.back()) throw;
      }
    }
  });
}

bool Plugin::supportsFormatCombination(int32_t pos, const abi::DynamicPluginTensorDesc* inOut, int32_t nbInputs,
                                       int32_t nbOutputs) noexcept {
  bool supported = false;
  Checked([&] {
    if (pos < 0 || pos >= nbInputs + nbOutputs || inOut[pos].desc.format != abi::TensorFormat::kLINEAR) return;
    CheckNumOutputs(nbOutputs);
    const Numbers dtypes = Gather(op_, nbInputs, [&](int i) { return i <= pos ? DtypeOf(inOut[i].desc.type) : -1; });
    const int32_t dtype = DtypeOf(inOut[pos].desc.type);
    const Form& said = fields_->form();
    // Float32 whatever the other floats are. Without `given_inputs` all inputs up to this one are taken to be there:
    // one of float32 alone never stands behind one that may be missing.
    const Present all = (Present{1} << op_.num_inputs) - 1;
    const TensorDef* tensor =
        pos >= nbInputs ? &op_.outputs[pos - nbInputs] : InputAt(op_, said.present == 0 ? all : said.present, pos);
    const bool own_type =
        tensor != nullptr && tensor->dtype == Variable::kS && (said.present != 0 || !tensor->quantized);
    if (!own_type && !fields_->MayHave(dtype)) return;
    if (!MayBegin(op_, said, nbInputs, dtypes.data(), std::min(pos + 1, nbInputs))) return;
    if (pos < nbInputs) {
      supported = true;
      return;
    }
    const Form form = FormOf(nbInputs, dtypes.data(), nullptr);
    supported = form.Crossing(*tensor, Bound(op_, form, dtypes).Of(tensor->dtype)) == dtype;
  });
  return supported;
}

int32_t Plugin::configurePlugin(const abi::DynamicPluginTensorDesc* in, int32_t nbInputs,
                                const abi::DynamicPluginTensorDesc* out, int32_t nbOutputs) noexcept {
  return Checked([&] {
    CheckNumOutputs(nbOutputs);
    const Form form = FormOf(nbInputs, [&](int i) { return in[i].desc; });
    std::array<abi::DynamicPluginTensorDesc, 2 * kMaxTensors> tensors = {};
    std::copy_n(out, nbOutputs, std::copy_n(in, nbInputs, tensors.begin()));
    Agree(op_, form, tensors.data());
    const Profile profile = {tensors.data(), nbInputs, tensors.data() + nbInputs};
    for (const auto bound :
         {&abi::DynamicPluginTensorDesc::min, &abi::DynamicPluginTensorDesc::opt, &abi::DynamicPluginTensorDesc::max}) {
      Request request(op_, fields_->values(), form, settings_, [&](int tensor) { return profile.At(tensor, bound); });
      Validate(op_, request.call());
    }
    built_.present = form.present;
    built_.workspace =
        static_cast<int64_t>(WorkspaceFor(op_, kernel_, CurrentDevice(), fields_->values(), form, profile, settings_));
  });
}

void Plugin::AskForAtLeast(size_t workspace) {
  built_.workspace = std::max(built_.workspace, static_cast<int64_t>(workspace));
}

size_t Plugin::getWorkspaceSize(const abi::DynamicPluginTensorDesc*, int32_t, const abi::DynamicPluginTensorDesc*,
                                int32_t) const noexcept {
  return static_cast<size_t>(built_.workspace);
}

std::vector<abi::PluginField> Plugin::SerializedFields() const {
  const abi::PluginFieldCollection& attributes = *fields_->collection();
  std::vector<abi::PluginField> fields(attributes.fields, attributes.fields + attributes.nbFields);
  AppendBuilt(built_, &fields);
  return fields;
}

const abi::PluginFieldCollection* Plugin::getFieldsToSerialize() noexcept {
  const int32_t code = Checked([&] {
    serialized_ = SerializedFields();
    collection_ = {static_cast<int32_t>(serialized_.size()), serialized_.data()};
  });
  return code == BERTFUSE_OK ? &collection_ : nullptr;
}

abi::IPluginV3* Plugin::attachToContext(abi::IPluginResourceContext* context) noexcept {
  auto* copy = static_cast<Plugin*>(clone());
  if (copy != nullptr && context != nullptr) copy->recorder_ = context->getErrorRecorder();
  return copy;
}

int32_t Plugin::onShapeChange(const abi::PluginTensorDesc* in, int32_t nbInputs, const abi::PluginTensorDesc* out,
                              int32_t nbOutputs) noexcept {
  return Checked([&] {
    CheckNumOutputs(nbOutputs);
    const auto description_of = [&](int tensor) { return tensor < nbInputs ? in[tensor] : out[tensor - nbInputs]; };
    const Form form = FormOf(nbInputs, description_of);
    Request request(op_, fields_->values(), form, settings_, description_of);
    Validate(op_, request.call());
    CheckWorkspace(request.call());
    built_.present = form.present;
  });
}

void Plugin::CheckWorkspace(bertfuse_call call) const {
  call.device_id = CurrentDevice();
  if (kernel_ == nullptr || call.device_id < 0) return;
  const auto fits = [&](int32_t tactic) {
    call.tactic = tactic;
    return WorkspaceSize(*kernel_, call) <= static_cast<size_t>(built_.workspace);
  };
  if (fits(-1)) return;
  // Built for another device, or between two of the shapes that were asked about.
  const int32_t count = NumTactics(*kernel_, call);
  for (int32_t tactic = 0; tactic < count; ++tactic) {
    if (fits(tactic)) return;
  }
  Fail(BERTFUSE_NOT_SUPPORTED,
       "%s: the engine has %lld bytes of workspace for it, too few on this GPU: build the engine on a machine with one "
       "like it",
       op_.name, static_cast<long long>(built_.workspace));
}

int32_t Plugin::enqueue(const abi::PluginTensorDesc* inputDesc, const abi::PluginTensorDesc* outputDesc,
                        const void* const* inputs, void* const* outputs, void* workspace, abi::Stream stream) noexcept {
  return Checked([&] {
    if (kernel_ == nullptr) {
      Fail(BERTFUSE_NOT_SUPPORTED,
           "%s: this libbertfuse_trt.so was built without CUDA kernels (no nvcc): it builds engines, but cannot run "
           "them",
           op_.name);
    }
    if (built_.present == 0) Fail(BERTFUSE_RUNTIME_ERROR, "%s: enqueue without shapes", op_.name);
    const Form form = BuiltForm();
    const int count = Count(form.present);
    Request request(op_, fields_->values(), form, settings_,
                    [&](int tensor) { return tensor < count ? inputDesc[tensor] : outputDesc[tensor - count]; });
    Validate(op_, request.call());
    if (inputs == nullptr || outputs == nullptr)
      Fail(BERTFUSE_INVALID_ARGUMENT, "%s: enqueue without tensors", op_.name);
    for (int i = 0, place = 0; i < op_.num_inputs; ++i) {
      // Kernels only read their inputs; the C ABI has one kind of tensor.
      if (Has(form.present, i)) request.input(i).data = const_cast<void*>(inputs[place++]);
    }
    bertfuse_call& call = request.call();
    for (int i = 0; i < call.num_outputs; ++i) request.output(i).data = outputs[i];
    call.constant_inputs = fields_->constant_inputs();
    call.device_id = CurrentDevice();
    call.stream = stream;
    call.workspace = workspace;
    call.workspace_size = workspace == nullptr ? 0 : static_cast<size_t>(built_.workspace);
    Run(*kernel_, call);
  });
}

Plugin NewLayer(const OpDef& op, const char* name, const abi::PluginFieldCollection* fields) {
  return {op, name, std::make_shared<const Fields>(op, fields), {}};
}

Plugin LayerOfEngine(const OpDef& op, const char* name, const abi::PluginFieldCollection* fields) {
  std::vector<abi::PluginField> attributes;
  const Built built = ReadBuilt(op, fields, &attributes);
  const abi::PluginFieldCollection kept = {static_cast<int32_t>(attributes.size()), attributes.data()};
  auto made = std::make_shared<const Fields>(op, &kept);
  CheckBuilt(op, built, *made);
  return {op, name, std::move(made), built};
}

}  // namespace bertfuse::tensorrt
