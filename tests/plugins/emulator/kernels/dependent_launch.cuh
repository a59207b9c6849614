// plugins/kernels/dependent_launch.cuh for the emulator.
#ifndef BERTFUSE_KERNELS_DEPENDENT_LAUNCH_CUH_
#define BERTFUSE_KERNELS_DEPENDENT_LAUNCH_CUH_

#include "emulator/hopper.h"

namespace bertfuse::kernels {

inline constexpr bool kHasDependentLaunch = true;
inline void WaitForDependencies() { emulator::WaitForDependencies(); }
inline void LaunchDependents() { emulator::LaunchDependents(); }

}  // namespace bertfuse::kernels
#endif  // BERTFUSE_KERNELS_DEPENDENT_LAUNCH_CUH_
