# Sets CUBLASLT_INCLUDE_DIR to the folder of NVIDIA's cublasLt.h, or to nothing. Only a test wants it, which compares
# plugins/kernels/cublaslt/abi.h with it. Looked for in the CUDA toolkit and in pip's packages (nvidia-cublas).
file(GLOB of_pip "${Python3_SITELIB}/nvidia/*/include")
find_path(CUBLASLT_INCLUDE_DIR cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${of_pip})
mark_as_advanced(CUBLASLT_INCLUDE_DIR)
if(CUBLASLT_INCLUDE_DIR)
  message(STATUS "cuBLASLt's header: ${CUBLASLT_INCLUDE_DIR}")
else()
  message(STATUS "cuBLASLt's header: not found, not compared with ours (pip install nvidia-cublas has it)")
endif()
