// Products in cuBLASLt: y[m, n] = x[m, k] * weight[n, k] transposed, plus a bias where one is given.
#ifndef BERTFUSE_KERNELS_CUBLASLT_PLAN_H_
#define BERTFUSE_KERNELS_CUBLASLT_PLAN_H_

#include <array>
#include <atomic>
#include <memory>
#include <string>

#include "kernels/cublaslt/library.h"

namespace bertfuse::kernels::cublaslt {

// What cuBLASLt chooses an algorithm by. Alignments are powers of two in bytes, up to 256, and hold of every row: of
// two products that are equal but for them, one may have algorithms that the other lacks.
struct PlanKey {
  cudaDataType_t operands = CUDA_R_32F, result = CUDA_R_32F;  // of x and weight; of y and bias
  bool tf32 = false;                                          // float32 operands may be rounded to TF32
  int64_t m = 0, n = 0, k = 0;
  int x_alignment = 1, weight_alignment = 1, y_alignment = 1;
  int bias_alignment = 0;  // 0: no bias
};

// The largest of these powers of two that divides the address: 256 for null, where an address is not known yet.
int AlignmentOf(const void* data);

// The largest of them that divides the address of every row of that many bytes each.
int AlignmentOfRows(const void* data, int64_t row_bytes);

// What kernels of cuBLASLt may read and write at a time whatever they are told: of a bias, whose alignment no
// preference names, and of partial sums, whose rows are as long as y's.
constexpr int kVectorAlignment = 16;

constexpr int kMaxAlgorithms = 4;

// The most bytes of workspace that an algorithm takes on the device.
size_t WorkspaceLimit(const Device& device);

// The first algorithms of cuBLASLt's heuristics, in their order. If all of the first ones take a workspace, the last
// is one that takes none, if there is any.
struct Algorithms {
  int count = 0;
  std::array<size_t, kMaxAlgorithms> workspace_bytes = {};

  bool operator==(const Algorithms& other) const {
    return count == other.count && workspace_bytes == other.workspace_bytes;
  }
};

// Descriptors and algorithms of one product on one device. Any number of threads may run it at once.
class Plan {
 public:
  Plan(const PlanKey& key, const Device& device);
  ~Plan();
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  // None where cuBLASLt does not support the product.
  const Algorithms& algorithms() const { return algorithms_; }

  bool adds_bias() const { return key_.bias_alignment > 0; }

  // Launches the product on the device, which is current; `bias` is not read where the plan adds none, `workspace` has
  // at least the algorithm's bytes, on a boundary of 256. Allocates nothing on the device and does not wait. A Status.
  int Run(int algorithm, const void* x, const void* weight, const void* bias, void* y, void* workspace,
          cudaStream_t stream) const;

  // After a failed run: no choice is to take the plan from now on. Whether this is the first call.
  bool Withdraw() const { return !withdrawn_.exchange(true); }
  bool withdrawn() const { return withdrawn_.load(std::memory_order_relaxed); }

 private:
  int Describe(MatmulDesc* desc, const void* bias) const;
  int Ask();

  const PlanKey key_;
  const Handle handle_;
  const size_t workspace_limit_;  // WorkspaceLimit()
  MatmulDesc desc_ = nullptr;     // without a bias, whose address belongs to one run
  MatrixLayout x_ = nullptr, weight_ = nullptr, y_ = nullptr;
  std::array<Algorithm, kMaxAlgorithms> algorithm_ = {};
  Algorithms algorithms_;
  mutable std::atomic<bool> withdrawn_{false};
};

// The plan, made by the first call with its key. A bounded number is kept; where there are more, all are made anew.
std::shared_ptr<const Plan> FindPlan(const PlanKey& key, const Device& device);

}  // namespace bertfuse::kernels::cublaslt
#endif  // BERTFUSE_KERNELS_CUBLASLT_PLAN_H_
