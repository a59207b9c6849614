include(CheckCXXCompilerFlag)

# The CPU kernels: one file per op, and the inner loops once per instruction set (plugins/cpu/vector_dispatch.cc chooses).
add_library(bertfuse_cpu STATIC
  plugins/cpu/add_qkv_bias.cc
  plugins/cpu/attention.cc
  plugins/cpu/call.cc
  plugins/cpu/embed_layer_norm.cc
  plugins/cpu/first_tokens.cc
  plugins/cpu/gemm.cc
  plugins/cpu/kernels.cc
  plugins/cpu/pack_tokens.cc
  plugins/cpu/ragged_positions.cc
  plugins/cpu/rms_norm.cc
  plugins/cpu/rotary_tables.cc
  plugins/cpu/unpack_tokens.cc
  plugins/cpu/vector_dispatch.cc)
target_link_libraries(bertfuse_cpu PRIVATE bertfuse_headers bertfuse_core)

function(bertfuse_add_loops name)
  add_library(bertfuse_loops_${name} OBJECT plugins/cpu/vector_loops.cc)
  target_link_libraries(bertfuse_loops_${name} PRIVATE bertfuse_headers)
  target_compile_definitions(bertfuse_loops_${name} PRIVATE BERTFUSE_LOOPS=${name})
  # -Wno-psabi: vectors are passed between functions of this one file only, so their calling convention is no matter.
  target_compile_options(bertfuse_loops_${name} PRIVATE -Wno-psabi ${ARGN})
  target_sources(bertfuse_cpu PRIVATE $<TARGET_OBJECTS:bertfuse_loops_${name}>)
endfunction()

bertfuse_add_loops(baseline)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  bertfuse_add_loops(avx2 -mavx2 -mfma -mf16c)
  bertfuse_add_loops(avx512 -mavx512f -mavx512bw -mavx2 -mfma -mf16c)
  bertfuse_add_loops(avx512vnni -mavx512f -mavx512bw -mavx512vnni -mavx2 -mfma -mf16c)
  target_compile_definitions(bertfuse_cpu PRIVATE BERTFUSE_X86_LOOPS)
  check_cxx_compiler_flag(-mamx-int8 BERTFUSE_HAS_AMX_FLAG)  # GCC from 11 on
  if(BERTFUSE_HAS_AMX_FLAG AND CMAKE_SYSTEM_NAME STREQUAL "Linux")
    bertfuse_add_loops(amx -mamx-tile -mamx-int8 -mavx512f -mavx512bw -mavx512vnni -mavx2 -mfma -mf16c)
    target_compile_definitions(bertfuse_cpu PRIVATE BERTFUSE_AMX_LOOPS)
  endif()
endif()
