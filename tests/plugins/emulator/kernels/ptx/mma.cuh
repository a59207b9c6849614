// plugins/kernels/ptx/mma.cuh for the emulator.
//
// Sums are as bad as those of GPUs were found to be (Fasi et al., Numerical behavior of NVIDIA tensor cores, PeerJ
// Computer Science 2021): products are exact; 8 of them (4 of TF32's) and what was there before are added together and
// cut off to float32, not rounded. A GPU cuts off a few bits further behind, and of each product; its results differ
// from these by a unit in the last place of the largest of what is added.
#ifndef BERTFUSE_KERNELS_PTX_MMA_CUH_
#define BERTFUSE_KERNELS_PTX_MMA_CUH_

#include "kernels/elements.cuh"
#include "kernels/ptx/async_copy.cuh"

namespace bertfuse::kernels {

// Lane 4i + j gets elements 2j and 2j + 1 of row i of each matrix; of column i, where it is transposed.
inline void LoadMatrices(const char* name, bool transposed, uint32_t (&out)[4], uint32_t address) {
  struct Mine {
    uint32_t address;
    uint32_t* out;
  };
  Mine mine = {address, out};
  for (int matrix = 0; matrix < 4; ++matrix) out[matrix] = 0xffffffffu;
  emulator::ForWarp(name, 0xffffffffu, mine, [=](Mine* const* lanes) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      const uint16_t* rows[8];
      for (int row = 0; row < 8; ++row) {
        rows[row] =
            reinterpret_cast<const uint16_t*>(emulator::SharedPointer(lanes[8 * matrix + row]->address, 16, name));
      }
      for (int lane = 0; lane < 32; ++lane) {
        const int i = lane / 4, j = lane % 4 * 2;
        const uint32_t low = transposed ? rows[j][i] : rows[i][j], high = transposed ? rows[j + 1][i] : rows[i][j + 1];
        lanes[lane]->out[matrix] = low | high << 16;
      }
    }
  });
  emulator::NoteSharedAccess(address, 16, emulator::SharedAccess::kLoad);
}

inline void LoadMatrices(uint32_t (&out)[4], uint32_t address) { LoadMatrices("ldmatrix", false, out, address); }
inline void LoadMatricesTransposed(uint32_t (&out)[4], uint32_t address) {
  LoadMatrices("ldmatrix.trans", true, out, address);
}

// Lane 4i + j has elements 2j and 2j + 1 of row i of each matrix.
inline void StoreMatrices(uint32_t address, const uint32_t (&in)[4]) {
  struct Mine {
    uint32_t address;
    const uint32_t* in;
  };
  Mine mine = {address, in};
  emulator::ForWarp("stmatrix", 0xffffffffu, mine, [](Mine* const* lanes) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      for (int row = 0; row < 8; ++row) {
        const uint32_t at = lanes[8 * matrix + row]->address;
        auto* const pairs = reinterpret_cast<uint32_t*>(emulator::SharedPointer(at, 16, "stmatrix"));
        for (int j = 0; j < 4; ++j) pairs[j] = lanes[4 * row + j]->in[matrix];
        emulator::MarkStored(at, 0xfu << 4 * row);
      }
    }
  });
  emulator::NoteSharedAccess(address, 16, emulator::SharedAccess::kStore);
}

// To the nearest, ties away from zero.
inline uint32_t RoundToTf32(uint32_t x) {
  const bool finite = (x & 0x7f800000u) != 0x7f800000u;
  return finite ? (x + 0x1000u) & 0xffffe000u : x;
}

// Element `i` of a register: one for TF32, whose low 13 bits are not looked at, two of a 16-bit type.
template <class T>
struct MmaOperand {
  static constexpr int kPerRegister = 2;
  static float Of(uint32_t bits, int i) {
    const uint16_t element = static_cast<uint16_t>(bits >> 16 * i);
    return ToFloat(reinterpret_cast<const T&>(element));
  }
};
template <>
struct MmaOperand<__nv_fp8_e4m3> {
  static constexpr int kPerRegister = 4;
  static float Of(uint32_t bits, int i) {
    const uint8_t element = static_cast<uint8_t>(bits >> 8 * i);
    return ToFloat(reinterpret_cast<const __nv_fp8_e4m3&>(element));
  }
};
template <>
struct MmaOperand<float> {
  static constexpr int kPerRegister = 1;
  static float Of(uint32_t bits, int) { return __uint_as_float(bits & 0xffffe000u); }
};

// To float32, towards zero.
inline float CutOff(double x) {
  const auto rounded = static_cast<float>(x);
  return std::isfinite(rounded) && std::abs(static_cast<double>(rounded)) > std::abs(x) ? std::nextafter(rounded, 0.0f)
                                                                                        : rounded;
}

// Register r of lane 4i + j has, of a, rows i and i + 8 (by r % 2); of b, column i; and of both in k the j-th group of
// a register's elements, of the lower half of k or the upper one.
template <class T, int kRegistersOfA, int kRegistersOfB>
inline void MmaOfWarp(float (&d)[4], const uint32_t (&a)[kRegistersOfA], const uint32_t (&b)[kRegistersOfB]) {
  constexpr int kPer = MmaOperand<T>::kPerRegister, kHalf = 4 * kPer, kK = kHalf * kRegistersOfB;
  struct Mine {
    float* d;
    const uint32_t *a, *b;
  };
  Mine mine = {d, a, b};
  emulator::ForWarp("mma", 0xffffffffu, mine, [](Mine* const* lanes) {
    float x[16][kK], w[kK][8];
    for (int lane = 0; lane < 32; ++lane) {
      const int i = lane / 4, first_k = lane % 4 * kPer;
      for (int e = 0; e < kPer; ++e) {
        for (int r = 0; r < kRegistersOfA; ++r) {
          x[i + r % 2 * 8][first_k + e + r / 2 * kHalf] = MmaOperand<T>::Of(lanes[lane]->a[r], e);
        }
        for (int r = 0; r < kRegistersOfB; ++r) w[first_k + e + r * kHalf][i] = MmaOperand<T>::Of(lanes[lane]->b[r], e);
      }
    }
    for (int lane = 0; lane < 32; ++lane) {
      for (int e = 0; e < 4; ++e) {
        const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
        float sum = lanes[lane]->d[e];
        for (int group = 0; group < kK; group += kHalf) {
          double exact = sum;
          for (int k = group; k < group + kHalf; ++k) exact += static_cast<double>(x[row][k]) * w[k][column];
          sum = CutOff(exact);
        }
        lanes[lane]->d[e] = sum;
      }
    }
  });
}

// The same of 8-bit integers, four to a register; sums of 32 bits wrap.
inline void MmaOfWarp(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  struct Mine {
    int32_t* d;
    const uint32_t *a, *b;
  };
  Mine mine = {d, a, b};
  emulator::ForWarp("mma", 0xffffffffu, mine, [](Mine* const* lanes) {
    int x[16][32], w[32][8];
    for (int lane = 0; lane < 32; ++lane) {
      const int i = lane / 4, first_k = lane % 4 * 4;
      for (int e = 0; e < 4; ++e) {
        const auto element = [e](uint32_t bits) { return static_cast<int8_t>(bits >> 8 * e); };
        for (int r = 0; r < 4; ++r) x[i + r % 2 * 8][first_k + e + r / 2 * 16] = element(lanes[lane]->a[r]);
        for (int r = 0; r < 2; ++r) w[first_k + e + r * 16][i] = element(lanes[lane]->b[r]);
      }
    }
    for (int lane = 0; lane < 32; ++lane) {
      for (int e = 0; e < 4; ++e) {
        const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
        int64_t sum = lanes[lane]->d[e];
        for (int k = 0; k < 32; ++k) sum += x[row][k] * w[k][column];
        lanes[lane]->d[e] = static_cast<int32_t>(static_cast<uint32_t>(sum));
      }
    }
  });
}

template <class T>
inline void Mma(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  static_assert(std::is_same_v<T, int8_t>);
  const uint32_t b[2] = {b0, b1};
  MmaOfWarp(d, a, b);
}

template <class T>
inline constexpr bool kHasMma = BERTFUSE_EMULATED_CAPABILITY >= 80 || std::is_same_v<T, __half>;

template <class T>
inline void Mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (BERTFUSE_EMULATED_CAPABILITY >= 80) {
    const uint32_t b[2] = {b0, b1};
    MmaOfWarp<T>(d, a, b);
  } else {
    const uint32_t low[2] = {a[0], a[1]}, high[2] = {a[2], a[3]}, b[2][1] = {{b0}, {b1}};
    MmaOfWarp<T>(d, low, b[0]);
    MmaOfWarp<T>(d, high, b[1]);
  }
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_PTX_MMA_CUH_
