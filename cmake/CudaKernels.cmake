# The CUDA kernels as the static library bertfuse_cuda: plugins/kernels and plugins/ops. Where they are not built,
# cuda_left_out says why.
#
# They need the CUDA toolkit (12.5 or newer) and CUTLASS's headers (nvidia-cutlass from PyPI, or a folder given by
# BERTFUSE_CUTLASS_INCLUDE_DIR) to build, and nothing but the driver to run: the CUDA runtime is linked in.
if(NOT BERTFUSE_CUDA STREQUAL "AUTO" AND NOT BERTFUSE_CUDA)
  set(cuda_left_out "BERTFUSE_CUDA is OFF")
  return()
endif()
set(BERTFUSE_CUDA_ARCHITECTURES "" CACHE STRING
    "Architectures of the portable kernels, as numbers; empty: this machine's GPUs, or with BERTFUSE_CUDA=ON those in use that nvcc knows. The Hopper kernels are built for 90a whenever a 90 is among them")
set(architectures "${BERTFUSE_CUDA_ARCHITECTURES}")
if(architectures STREQUAL "" AND BERTFUSE_CUDA STREQUAL "AUTO")
  # nvidia-smi is part of the driver: without it no GPU can be used here.
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                  OUTPUT_VARIABLE gpus ERROR_QUIET RESULT_VARIABLE code)
  if(code EQUAL 0)
    string(REGEX MATCHALL "[0-9]+\\.[0-9]" gpus "${gpus}")
    foreach(gpu IN LISTS gpus)
      string(REPLACE "." "" gpu "${gpu}")
      if(gpu GREATER_EQUAL 75)
        list(APPEND architectures "${gpu}")
      endif()
    endforeach()
    set(gpus "${architectures}")
  endif()
  if(architectures STREQUAL "")
    set(cuda_left_out "no GPU of compute capability 7.5 or newer is here; BERTFUSE_CUDA=ON builds them for all")
    return()
  endif()
endif()

include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  set(cuda_left_out "no nvcc that works is found")
  return()
endif()
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.5)
  set(cuda_left_out "nvcc 12.5 or newer is needed, ${CMAKE_CUDA_COMPILER} is ${CMAKE_CUDA_COMPILER_VERSION}")
  return()
endif()
find_package(CUDAToolkit 12.5 REQUIRED)

if(architectures STREQUAL "")
  # Machine code for each generation in use; the PTX of 9.0 serves whatever has none (and what comes later).
  set(architectures 75-real 80-real 86-real 89-real 90)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.8)
    message(STATUS "CUDA kernels: GPUs of 10.0 and 12.0 run the PTX of 9.0, since nvcc ${CMAKE_CUDA_COMPILER_VERSION} "
                   "does not know them (12.8 does)")
  else()
    list(APPEND architectures 100-real 120-real)
  endif()
endif()
execute_process(COMMAND "${CMAKE_CUDA_COMPILER}" --list-gpu-arch OUTPUT_VARIABLE known)
foreach(gpu IN LISTS gpus)
  if(NOT known MATCHES "compute_${gpu}")  # newer than this nvcc
    list(REMOVE_ITEM architectures "${gpu}")
    list(APPEND architectures 90)
  endif()
endforeach()
list(REMOVE_DUPLICATES architectures)
foreach(architecture IN LISTS architectures)
  if(NOT architecture MATCHES "^[0-9]+[af]?(-real|-virtual)?$")
    message(FATAL_ERROR "BERTFUSE_CUDA_ARCHITECTURES: '${architecture}' is no number: give some, such as 80-real;90")
  endif()
endforeach()
set(CMAKE_CUDA_ARCHITECTURES "${architectures}")

set(BERTFUSE_CUTLASS_INCLUDE_DIR "" CACHE PATH "CUTLASS 4.2 include folder; empty: asked of the Python package")
if(architectures MATCHES "(^|;)90")
  set(cutlass "${BERTFUSE_CUTLASS_INCLUDE_DIR}")
  if(NOT cutlass)
    execute_process(
      COMMAND "${Python3_EXECUTABLE}" -c
              "import importlib.util as u, os; print(os.path.join(os.path.dirname(u.find_spec('cutlass_library').origin), 'source', 'include'))"
      OUTPUT_VARIABLE cutlass OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  if(NOT EXISTS "${cutlass}/cute/arch/mma_sm90_gmma.hpp")
    set(cuda_left_out "the Hopper kernels need CUTLASS 4.2's headers: docs/gpu.md")
    return()
  endif()
endif()

set(kernels "${CMAKE_CURRENT_SOURCE_DIR}/plugins/kernels")
set(ops "${CMAKE_CURRENT_SOURCE_DIR}/plugins/ops")
add_library(bertfuse_cuda STATIC
  "${kernels}/device.cc" "${kernels}/launch.cc" "${kernels}/tensor_map.cc"
  "${kernels}/cublaslt/library.cc" "${kernels}/cublaslt/plan.cc"
  "${kernels}/add_qkv_bias.cu" "${kernels}/bias_activation.cu" "${kernels}/change_heads.cu" "${kernels}/portable/attention_simt.cu"
  "${kernels}/embed_layer_norm.cu" "${kernels}/portable/gemm_simt.cu" "${kernels}/gate.cu" "${kernels}/gpu_code.cu"
  "${kernels}/layer_norm.cu" "${kernels}/packing.cu" "${kernels}/quantize_rows.cu" "${kernels}/quantized_residual_norm.cu"
  "${kernels}/quantizing_norm.cu" "${kernels}/residual_norm.cu" "${kernels}/rms_norm.cu" "${kernels}/rotary_tables.cu"
  "${ops}/add_qkv_bias.cc" "${ops}/attention.cc" "${ops}/attention_tactic.cc" "${ops}/embed_layer_norm.cc" "${ops}/first_tokens.cc"
  "${ops}/gemm.cc" "${ops}/gemm_candidates_cublaslt.cc" "${ops}/gemm_candidates_mma.cc" "${ops}/gemm_candidates_simt.cc" "${ops}/gemm_candidates_sm90.cc"
  "${ops}/gemm_cost.cc" "${ops}/gemm_tactic.cc"
  "${ops}/gpu.cc" "${ops}/kernels.cc" "${ops}/layer_norm_tactic.cc" "${ops}/measured_gemms.cc" "${BERTFUSE_MEASURED_TABLES}" "${ops}/pack_tokens.cc" "${ops}/packed_rows.cc" "${ops}/ragged_positions.cc" "${ops}/rms_norm.cc" "${ops}/rotary_tables.cc" "${ops}/row_hints.cc" "${ops}/tune.cc" "${ops}/tuned_problem.cc" "${ops}/tuning.cc" "${ops}/unpack_tokens.cc")
target_link_libraries(bertfuse_cuda PUBLIC bertfuse_headers CUDA::cudart_static ${CMAKE_DL_LIBS})
target_compile_options(bertfuse_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)

# One file for each function and element type, so that they compile side by side: dtypes.h's BERTFUSE_HALF_DTYPES.
set(dtypes "${CMAKE_CURRENT_SOURCE_DIR}/plugins/include/bertfuse/dtypes.h")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${dtypes}")
file(READ "${dtypes}" rows)
string(REGEX MATCH "#define BERTFUSE_HALF_DTYPES[^#]*" rows "${rows}")
string(REGEX MATCHALL "X\\([A-Z0-9]+, [0-9]+, \"[a-z0-9]+\", [0-9]+, [A-Za-z0-9]+, [A-Za-z0-9_]+\\)" elements "${rows}")
list(TRANSFORM elements REPLACE ".*, ([A-Za-z0-9_]+)\\)" "\\1")
# Appends to `sources` the files of `function`, which header kernels.cuh of `folder` defines; after it, element types.
function(bertfuse_instantiate sources folder function)
  set(header "${folder}/kernels.cuh")
  foreach(element IN LISTS ARGN)
    set(source "${BERTFUSE_GENERATED_DIR}/${folder}/${function}${element}.cu")
    configure_file("${kernels}/instance.cu.in" "${source}" @ONLY)
    list(APPEND ${sources} "${source}")
  endforeach()
  set(${sources} "${${sources}}" PARENT_SCOPE)
endfunction()

bertfuse_instantiate(mma_sources mma/gemm GemmMma float ${elements})
bertfuse_instantiate(mma_sources mma/gemm GemmMmaInt8 float ${elements})
bertfuse_instantiate(mma_sources mma/gemm GemmMmaFp8 float ${elements})
bertfuse_instantiate(mma_sources mma/attention AttentionMma ${elements})
bertfuse_instantiate(mma_sources mma/attention AttentionMmaTf32 float)
bertfuse_instantiate(mma_sources mma/attention AttentionMmaThreeTf32 float)
target_sources(bertfuse_cuda PRIVATE ${mma_sources})

if(architectures MATCHES "(^|;)90")
  bertfuse_instantiate(sm90_sources sm90/gemm GemmSm90Elementwise ${elements})
  bertfuse_instantiate(sm90_sources sm90/gemm GemmSm90Gated ${elements})
  bertfuse_instantiate(sm90_sources sm90/gemm GemmSm90Rotating ${elements})
  bertfuse_instantiate(sm90_sources sm90/gemm GemmSm90Residual ${elements})
  bertfuse_instantiate(sm90_sources sm90/gemm GemmSm90LayerNorm ${elements})
  bertfuse_instantiate(sm90_sources sm90/gemm GemmSm90SplitK ${elements})
  bertfuse_instantiate(sm90_sources sm90/gemm GemmSm90Int8 ${elements})
  bertfuse_instantiate(sm90_sources sm90/gemm GemmSm90Fp8 ${elements})
  bertfuse_instantiate(sm90_sources sm90/attention AttentionSm90 ${elements})
  add_library(bertfuse_cuda_sm90 OBJECT ${sm90_sources})
  target_link_libraries(bertfuse_cuda_sm90 PRIVATE bertfuse_headers CUDA::cudart_static)
  target_include_directories(bertfuse_cuda_sm90 SYSTEM PRIVATE "${cutlass}")
  target_compile_definitions(bertfuse_cuda_sm90 PRIVATE BERTFUSE_WITH_SM90)
  target_compile_options(bertfuse_cuda_sm90 PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
  set(launcher sh "${PROJECT_SOURCE_DIR}/cmake/refuse_serialised_wgmma.sh" ${CMAKE_CUDA_COMPILER_LAUNCHER})
  set_target_properties(bertfuse_cuda_sm90 PROPERTIES CUDA_ARCHITECTURES 90a-real CUDA_COMPILER_LAUNCHER "${launcher}")
  target_sources(bertfuse_cuda PRIVATE $<TARGET_OBJECTS:bertfuse_cuda_sm90>)
  target_compile_definitions(bertfuse_cuda PUBLIC BERTFUSE_WITH_SM90)
  list(APPEND architectures "90a-real")
endif()

# What `bertfuse doctor` says, and what a tuning file was measured with.
file(STRINGS "${CMAKE_CURRENT_SOURCE_DIR}/src/bertfuse/__init__.py" version REGEX "^__version__ = ")
string(REGEX MATCH "[0-9][0-9A-Za-z.]*" version "${version}")
set_property(SOURCE "${ops}/tuning.cc" APPEND PROPERTY COMPILE_DEFINITIONS "BERTFUSE_VERSION=\"${version}\"")
string(REPLACE ";" " " architectures "${architectures}")
set_property(SOURCE "${ops}/gpu.cc" APPEND PROPERTY COMPILE_DEFINITIONS "BERTFUSE_GPU_ARCHITECTURES=\"${architectures}\"")
