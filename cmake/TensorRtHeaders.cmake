# Sets TENSORRT_INCLUDE_DIR to the folder of TensorRT's NvInferRuntime.h, or to nothing. Only a test wants it, which
# compares plugins/tensorrt/abi.h (abi_v8.h: before 10.0) with it. Looked for below TENSORRT_ROOT (CMake's or the environment's) and in the system.
set(TENSORRT_ROOT "" CACHE PATH "Folder of a TensorRT (or TensorRT for RTX) SDK, or of its headers; only for a test")
find_path(TENSORRT_INCLUDE_DIR NvInferRuntime.h
  HINTS "${TENSORRT_ROOT}" "$ENV{TENSORRT_ROOT}" PATH_SUFFIXES include include/x86_64-linux-gnu include/aarch64-linux-gnu)
mark_as_advanced(TENSORRT_INCLUDE_DIR)
if(TENSORRT_INCLUDE_DIR)
  # They include cuda_runtime_api.h.
  find_package(CUDAToolkit QUIET)
endif()
if(TENSORRT_INCLUDE_DIR AND CUDAToolkit_FOUND)
  message(STATUS "TensorRT headers: ${TENSORRT_INCLUDE_DIR}")
elseif(TENSORRT_INCLUDE_DIR)
  message(STATUS "TensorRT headers: ${TENSORRT_INCLUDE_DIR}, not compared with ours: no CUDA toolkit")
  set(TENSORRT_INCLUDE_DIR "")
endif()
# Later versions have more lines of this kind, and other names in them.
set(TENSORRT_HEADERS_OF_V8 OFF)
if(TENSORRT_INCLUDE_DIR)
  file(STRINGS "${TENSORRT_INCLUDE_DIR}/NvInferVersion.h" major REGEX "define NV_TENSORRT_MAJOR [89] ")
  if(major)
    set(TENSORRT_HEADERS_OF_V8 ON)
  endif()
endif()
