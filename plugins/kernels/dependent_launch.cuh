// Programmatic dependent launch, device side. No-ops before compute capability 9.0.
#ifndef BERTFUSE_KERNELS_DEPENDENT_LAUNCH_CUH_
#define BERTFUSE_KERNELS_DEPENDENT_LAUNCH_CUH_

namespace bertfuse::kernels {

// Whether a kernel may begin before the one in front of it has ended.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
inline constexpr bool kHasDependentLaunch = true;
#else
inline constexpr bool kHasDependentLaunch = false;
#endif

// Waits until the kernels before this one in the stream have ended and their writes are visible.
__device__ __forceinline__ void WaitForDependencies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel in the stream start its blocks once every block of this one has said so or ended.
__device__ __forceinline__ void LaunchDependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_DEPENDENT_LAUNCH_CUH_
