# Tests of libbertfuse_trt.so: a host that plays TensorRT's part (tests/plugins/tensorrt/host.h), linked into
# the unit tests and, for tests/gpu, built as libbertfuse_trt_host.so, which needs neither TensorRT nor CUDA.
include(GoogleTest)
set(host "${CMAKE_CURRENT_SOURCE_DIR}/tests/plugins/tensorrt")
add_library(bertfuse_trt_host_objects OBJECT "${host}/host.cc" "${host}/host_v8.cc")
target_link_libraries(bertfuse_trt_host_objects PRIVATE bertfuse_headers)

if(BERTFUSE_GPU_TESTS)
  add_library(bertfuse_trt_host MODULE "${host}/host_exports.cc" $<TARGET_OBJECTS:bertfuse_trt_host_objects>)
  target_link_libraries(bertfuse_trt_host PRIVATE bertfuse_headers ${CMAKE_DL_LIBS})
  target_link_options(bertfuse_trt_host PRIVATE LINKER:--no-undefined -static-libstdc++ -static-libgcc)
  set_target_properties(bertfuse_trt_host PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/lib")
endif()

# TensorRT 8 itself, driven from Python: where its headers (8.6) and its parser's are found.
include(TensorRtHeaders)
if(BERTFUSE_GPU_TESTS AND TENSORRT_HEADERS_OF_V8 AND EXISTS "${TENSORRT_INCLUDE_DIR}/NvOnnxParser.h")
  add_library(bertfuse_trt_runner MODULE "${host}/runner.cc")
  target_include_directories(bertfuse_trt_runner SYSTEM PRIVATE "${TENSORRT_INCLUDE_DIR}" ${CUDAToolkit_INCLUDE_DIRS})
  target_compile_options(bertfuse_trt_runner PRIVATE -Wno-deprecated-declarations)
  target_link_libraries(bertfuse_trt_runner PRIVATE ${CMAKE_DL_LIBS})
  target_link_options(bertfuse_trt_runner PRIVATE -static-libstdc++ -static-libgcc)
  set_target_properties(bertfuse_trt_runner PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/lib")
endif()

if(BERTFUSE_TESTS)
  # The library with the CPU kernels in place of CUDA's. What cpu_kernels.cc defines is not taken from bertfuse_core.
  add_library(bertfuse_trt_on_cpu MODULE "${host}/cpu_kernels.cc" ${tensorrt_sources})
  target_link_libraries(bertfuse_trt_on_cpu PRIVATE bertfuse_core bertfuse_cpu ${CMAKE_DL_LIBS} Threads::Threads)
  # With no other exports, or the test program's own bertfuse_find_kernel would come first.
  target_link_options(bertfuse_trt_on_cpu PRIVATE
    "LINKER:--version-script=${host}/on_cpu_exports.map" LINKER:--no-undefined LINKER:-z,nodelete)

  add_executable(bertfuse_trt_tests
    "${host}/test_engine.cc" "${host}/test_execution.cc" "${host}/test_fields.cc" "${host}/test_library.cc"
    "${host}/test_messages.cc" "${host}/test_quantized.cc" "${host}/test_v8.cc" "${host}/test_workspace.cc" "${tensorrt}/arrange.cc" "${tensorrt}/form.cc" "${tensorrt}/request.cc"
    "${tensorrt}/workspace.cc" $<TARGET_OBJECTS:bertfuse_trt_host_objects>)
  target_link_libraries(bertfuse_trt_tests PRIVATE
    bertfuse_core bertfuse_cpu bertfuse_headers GTest::gtest_main Threads::Threads ${CMAKE_DL_LIBS})
  target_compile_definitions(bertfuse_trt_tests PRIVATE
    BERTFUSE_TRT_LIBRARY="$<TARGET_FILE:bertfuse_trt>" BERTFUSE_TRT_ON_CPU_LIBRARY="$<TARGET_FILE:bertfuse_trt_on_cpu>")
  # The library looks up getInferLibVersion in what loaded it.
  set_target_properties(bertfuse_trt_tests PROPERTIES ENABLE_EXPORTS ON)
  add_dependencies(bertfuse_trt_tests bertfuse_trt bertfuse_trt_on_cpu)
  gtest_discover_tests(bertfuse_trt_tests)

  if(TENSORRT_INCLUDE_DIR)
    if(TENSORRT_HEADERS_OF_V8)
      add_executable(bertfuse_trt_header_tests "${host}/test_official_headers_v8.cc")
    else()
      add_executable(bertfuse_trt_header_tests "${host}/test_official_headers.cc")
    endif()
    target_include_directories(bertfuse_trt_header_tests SYSTEM PRIVATE
      "${TENSORRT_INCLUDE_DIR}" ${CUDAToolkit_INCLUDE_DIRS})
    target_link_libraries(bertfuse_trt_header_tests PRIVATE bertfuse_headers GTest::gtest_main Threads::Threads)
    # Their headers mark as deprecated what they themselves use.
    target_compile_options(bertfuse_trt_header_tests PRIVATE -Wno-deprecated-declarations)
    gtest_discover_tests(bertfuse_trt_header_tests)
  endif()
endif()
