#include "kernels/cublaslt/plan.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cublaslt/capture.h"

namespace bertfuse::kernels::cublaslt {
namespace {

constexpr int kMaxAlignment = 256;
constexpr int kAsked = 8;           // algorithms of one heuristic
constexpr size_t kMaxPlans = 4096;  // about 1 KB each
constexpr size_t kMegabyte = 1 << 20;

bool operator<(const PlanKey& a, const PlanKey& b) {
  const auto fields = [](const PlanKey& p) {
    return std::tie(p.operands, p.result, p.tf32, p.m, p.n, p.k, p.x_alignment, p.weight_alignment, p.y_alignment,
                    p.bias_alignment);
  };
  return fields(a) < fields(b);
}

struct ByDevice {
  bool operator()(const std::pair<int, PlanKey>& a, const std::pair<int, PlanKey>& b) const {
    return a.first != b.first ? a.first < b.first : a.second < b.second;
  }
};

// An address of that alignment and no greater one, which is all that is asked of it.
const void* Aligned(int alignment) { return reinterpret_cast<const void*>(static_cast<uintptr_t>(alignment)); }

struct FreePreference {
  void operator()(Preference preference) const { FindLibrary()->MatmulPreferenceDestroy(preference); }
};

}  // namespace

// As NVIDIA recommends for cublasSetWorkspace().
size_t WorkspaceLimit(const Device& device) { return (device.compute_capability >= 90 ? 32 : 4) * kMegabyte; }

int AlignmentOf(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data) | kMaxAlignment;
  return static_cast<int>(address & (~address + 1));
}

int AlignmentOfRows(const void* data, int64_t row_bytes) {
  return AlignmentOf(
      reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(data) | static_cast<uint64_t>(row_bytes)));
}

// cuBLASLt's matrices are column-major. Read so, y is its transpose, [n, m], and so are x, [k, m], and weight, [k, n]:
// y transposed = (weight [k, n]) transposed * x [k, m]. cuBLASLt's A is weight, and a bias for each row of its D is one
// for each column of y.
Plan::Plan(const PlanKey& key, const Device& device)
    : key_(key), handle_(HandleOf(device)), workspace_limit_(WorkspaceLimit(device)) {
  if (handle_ == nullptr) return;
  const OutsideCapture outside;
  if (Ask() != kSuccess) algorithms_ = {};
}

Plan::~Plan() {
  if (handle_ == nullptr) return;
  const Library& library = *FindLibrary();
  if (desc_ != nullptr) library.MatmulDescDestroy(desc_);
  for (MatrixLayout layout : {x_, weight_, y_}) {
    if (layout != nullptr) library.MatrixLayoutDestroy(layout);
  }
}

int Plan::Describe(MatmulDesc* desc, const void* bias) const {
  const Library& library = *FindLibrary();
  const int type = key_.tf32 ? kCompute32FFastTf32 : kCompute32F;
  int status = library.MatmulDescCreate(desc, type, CUDA_R_32F);
  const auto set = [&](DescAttribute attribute, const auto& value) {
    if (status == kSuccess) status = library.MatmulDescSetAttribute(*desc, attribute, &value, sizeof(value));
  };
  set(kDescTransA, kOpT);
  set(kDescTransB, kOpN);
  if (adds_bias()) set(kDescEpilogue, kEpilogueBias), set(kDescBiasPointer, bias);
  return status;
}

int Plan::Ask() {
  const Library& library = *FindLibrary();
  int status = Describe(&desc_, Aligned(key_.bias_alignment));
  const auto describe = [&](MatrixLayout* layout, cudaDataType_t type, int64_t columns, int64_t rows) {
    if (status != kSuccess) return;
    status =
        library.MatrixLayoutCreate(layout, type, static_cast<uint64_t>(columns), static_cast<uint64_t>(rows), columns);
  };
  describe(&weight_, key_.operands, key_.k, key_.n);
  describe(&x_, key_.operands, key_.k, key_.m);
  describe(&y_, key_.result, key_.n, key_.m);
  Preference made = nullptr;
  if (status == kSuccess) status = library.MatmulPreferenceCreate(&made);
  const std::unique_ptr<std::remove_pointer_t<Preference>, FreePreference> preference(made);
  const auto prefer = [&](PreferenceAttribute attribute, const auto& value) {
    if (status == kSuccess) status = library.MatmulPreferenceSetAttribute(made, attribute, &value, sizeof(value));
  };
  prefer(kPreferenceMaxWorkspaceBytes, uint64_t{workspace_limit_});
  // 97x23x640 in bfloat16 had an algorithm, the fourth, that ended in CUDA error 716 (misaligned address) on an H100,
  // its tensors on boundaries of 256, y's rows of 46 bytes not. That it split k is a guess.
  const bool may_split = key_.y_alignment >= kVectorAlignment;
  prefer(kPreferenceReductionSchemeMask, may_split ? kReductionComputeType : kReductionNone);
  prefer(kPreferenceMinAlignmentA, static_cast<uint32_t>(key_.weight_alignment));
  prefer(kPreferenceMinAlignmentB, static_cast<uint32_t>(key_.x_alignment));
  prefer(kPreferenceMinAlignmentC, static_cast<uint32_t>(key_.y_alignment));
  prefer(kPreferenceMinAlignmentD, static_cast<uint32_t>(key_.y_alignment));
  std::array<HeuristicResult, kAsked> results = {};
  int count = 0;
  if (status == kSuccess) {
    status = library.MatmulAlgoGetHeuristic(handle_, desc_, weight_, x_, y_, y_, made, kAsked, results.data(), &count);
  }
  if (status != kSuccess) return status;
  const auto usable = [&](const HeuristicResult& result) {
    return result.state == kSuccess && result.workspace_bytes <= workspace_limit_;
  };
  std::vector<HeuristicResult> found;
  std::copy_if(results.begin(), results.begin() + std::clamp(count, 0, kAsked), std::back_inserter(found), usable);
  const auto frugal = std::find_if(found.begin(), found.end(), [](const auto& r) { return r.workspace_bytes == 0; });
  if (frugal != found.end() && frugal - found.begin() >= kMaxAlgorithms) found[kMaxAlgorithms - 1] = *frugal;
  algorithms_.count = static_cast<int>(std::min<size_t>(found.size(), kMaxAlgorithms));
  for (int i = 0; i < algorithms_.count; ++i) {
    algorithm_[i] = found[i].algorithm, algorithms_.workspace_bytes[i] = found[i].workspace_bytes;
  }
  return kSuccess;
}

int Plan::Run(int algorithm, const void* x, const void* weight, const void* bias, void* y, void* workspace,
              cudaStream_t stream) const {
  if (algorithm < 0 || algorithm >= algorithms_.count) return kInvalidValue;
  const size_t workspace_bytes = algorithms_.workspace_bytes[algorithm];
  if (workspace_bytes == 0) workspace = nullptr;  // cuBLASLt refuses one off alignment also where it needs none
  const Library& library = *FindLibrary();
  const float one = 1.0f, zero = 0.0f;
  MatmulDesc biased = nullptr;
  const OutsideCapture outside;  // the first run of a kernel loads its code
  int status = adds_bias() ? Describe(&biased, bias) : kSuccess;
  if (status == kSuccess) {
    status = library.Matmul(handle_, adds_bias() ? biased : desc_, &one, weight, weight_, x, x_, &zero, y, y_, y, y_,
                            &algorithm_[algorithm], workspace, workspace_bytes, stream);
  }
  if (biased != nullptr) library.MatmulDescDestroy(biased);
  return status;
}

std::shared_ptr<const Plan> FindPlan(const PlanKey& key, const Device& device) {
  struct Entry {
    std::once_flag once;
    std::optional<Plan> plan;
  };
  static std::shared_mutex mutex;
  static auto* entries = new std::map<std::pair<int, PlanKey>, std::shared_ptr<Entry>, ByDevice>();
  const std::pair<int, PlanKey> wanted(device.id, key);
  std::shared_ptr<Entry> entry;
  {
    const std::shared_lock<std::shared_mutex> lock(mutex);
    const auto found = entries->find(wanted);
    if (found != entries->end()) entry = found->second;
  }
  if (entry == nullptr) {
    const std::unique_lock<std::shared_mutex> lock(mutex);
    if (entries->size() >= kMaxPlans) entries->clear();
    entry = entries->try_emplace(wanted, std::make_shared<Entry>()).first->second;
  }
  // One thread asks cuBLASLt. Threads with the same product wait for the answer, those with others need not.
  std::call_once(entry->once, [&] { entry->plan.emplace(key, device); });
  return std::shared_ptr<const Plan>(entry, &*entry->plan);
}

}  // namespace bertfuse::kernels::cublaslt
