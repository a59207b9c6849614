// How far apart a packed sequence's tokens are, where padding may have been between them.
#ifndef BERTFUSE_KERNELS_PACKED_PLACES_CUH_
#define BERTFUSE_KERNELS_PACKED_PLACES_CUH_

#include "kernels/attention.h"
#include "kernels/attention_variant.cuh"
#include "kernels/packed_rows.cuh"

namespace bertfuse::kernels {

// Places of a sequence's tokens, counted from the first one's: a token's number, unless token_index says that there
// were gaps. They ascend, and so the tokens in a window are neighbours; those in the same window without gaps are no
// fewer. Whatever token_index holds, it is read at the sequence's rows alone.
class Places {
 public:
  // Without gaps.
  Places() = default;

  // Of the `length` rows from `first_row` on.
  __device__ __forceinline__ Places(const PackedSequences& packed, int first_row, int length) {
    if (packed.token_index == nullptr || length <= 0) return;
    const int32_t* const index = packed.token_index + first_row;
    // Of other numbers than a packing makes the difference may not fit an int.
    if (Load(index + length - 1) - Load(index) != static_cast<uint32_t>(length - 1)) index_ = index;
  }

  // How far one row's token is behind another's, where there is token_index. Called behind WaitForDependencies(): it is
  // read by way of the L1 cache, since many warps ask for a sequence's first row.
  __device__ __forceinline__ static int Between(const PackedSequences& packed, int first_row, int row) {
    return CutOff(static_cast<uint32_t>(packed.token_index[row]) -
                  static_cast<uint32_t>(packed.token_index[first_row]));
  }

  __device__ __forceinline__ bool HaveGaps() const { return index_ != nullptr; }

  // Where there are gaps: how far the token is behind the first one.
  __device__ __forceinline__ int At(int token) const { return Distance(index_, index_ + token); }

  // Where there are gaps: the first of `length` tokens whose place is not before `place`; `length` if there is none.
  __device__ __forceinline__ int FirstFrom(int place, int length) const {
    int begin = 0, end = length;
#pragma unroll 1
    while (begin < end) {
      const int middle = (begin + end) / 2;
      if (At(middle) < place) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    return begin;
  }

 private:
  // So that sums with a window's sides fit an int, whatever the numbers are.
  __device__ __forceinline__ static int CutOff(uint32_t distance) {
    return static_cast<int>(min(distance, static_cast<uint32_t>(kNoEnd / 2)));
  }
  __device__ __forceinline__ static int Distance(const int32_t* from, const int32_t* to) {
    return CutOff(Load(to) - Load(from));
  }
  __device__ __forceinline__ static uint32_t Load(const int32_t* at) { return static_cast<uint32_t>(LoadVolatile(at)); }

  const int32_t* index_ = nullptr;
};

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_PACKED_PLACES_CUH_
