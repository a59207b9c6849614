# libbertfuse_ort_on_fake_cudart.so: bertfuse_ort from the same objects, linked with a CUDA runtime that records launches
# in place of NVIDIA's (tests/plugins/fake_cudart). tests/plugins/test_launches.py runs on it where there is no GPU.
set(fake_cudart "${CMAKE_CURRENT_SOURCE_DIR}/tests/plugins/fake_cudart")
add_library(fake_cudart SHARED EXCLUDE_FROM_ALL "${fake_cudart}/fake_cudart.cc" "${fake_cudart}/fat_binary.cc"
  "${fake_cudart}/not_supported.cc" "${fake_cudart}/tensor_map.cc")
target_include_directories(fake_cudart SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_compile_options(fake_cudart PRIVATE -Wall -Wextra -fvisibility=default)
add_library(bertfuse_ort_on_fake_cudart MODULE EXCLUDE_FROM_ALL $<TARGET_OBJECTS:bertfuse_ort>)
# By their files: what bertfuse_cuda asks for besides is the runtime that is replaced here.
target_link_libraries(bertfuse_ort_on_fake_cudart PRIVATE
  -Wl,--start-group "$<TARGET_FILE:bertfuse_core>" "$<TARGET_FILE:bertfuse_cuda>" -Wl,--end-group
  bertfuse_cpu fake_cudart Threads::Threads)
add_dependencies(bertfuse_ort_on_fake_cudart bertfuse_core bertfuse_cuda)
target_link_options(bertfuse_ort_on_fake_cudart PRIVATE
  "LINKER:--version-script=${CMAKE_CURRENT_SOURCE_DIR}/plugins/ort/exports.map" LINKER:--no-undefined
  LINKER:--undefined=bertfuse_describe_gpu LINKER:--undefined=bertfuse_tune)
set_target_properties(fake_cudart bertfuse_ort_on_fake_cudart PROPERTIES
  LIBRARY_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/lib" BUILD_RPATH "$ORIGIN" BUILD_RPATH_USE_ORIGIN ON)

# A cuBLASLt for that runtime (tests/plugins/fake_cublaslt), under the name that the real one has, and one that lacks a
# function. Tests load them by path; the library finds them as it finds the real one.
set(fake_cublaslt "${CMAKE_CURRENT_SOURCE_DIR}/tests/plugins/fake_cublaslt")
foreach(fake fake_cublaslt fake_cublaslt_lacking)
  add_library(${fake} SHARED EXCLUDE_FROM_ALL "${fake_cublaslt}/fake_cublaslt.cc" "${fake_cublaslt}/product.cc")
  target_include_directories(${fake} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_include_directories(${fake} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/plugins")
  target_compile_options(${fake} PRIVATE -Wall -Wextra)
  target_link_libraries(${fake} PRIVATE fake_cudart)
  target_link_options(${fake} PRIVATE LINKER:-soname,libcublasLt.so.13)
  set_target_properties(${fake} PROPERTIES NO_SONAME ON
    LIBRARY_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/lib" BUILD_RPATH "$ORIGIN" BUILD_RPATH_USE_ORIGIN ON)
  add_dependencies(bertfuse_ort_on_fake_cudart ${fake})
endforeach()
target_compile_definitions(fake_cublaslt_lacking PRIVATE FAKE_CUBLASLT_LACKS_HEURISTIC)
