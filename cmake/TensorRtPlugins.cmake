# libbertfuse_trt.so: every op as a TensorRT plugin. Built everywhere: TensorRT's interface is declared in
# plugins/tensorrt/abi.h and abi_v8.h, and nothing links against TensorRT. Without the CUDA kernels it serves to build engines only.
set(tensorrt "${CMAKE_CURRENT_SOURCE_DIR}/plugins/tensorrt")
set(tensorrt_sources
  "${tensorrt}/arrange.cc" "${tensorrt}/bounds.cc" "${tensorrt}/creator.cc" "${tensorrt}/fields.cc" "${tensorrt}/form.cc" "${tensorrt}/hosts.cc" "${tensorrt}/log.cc"
  "${tensorrt}/packed_fields.cc" "${tensorrt}/plugin.cc" "${tensorrt}/plugin_v2.cc" "${tensorrt}/register.cc"
  "${tensorrt}/request.cc" "${tensorrt}/shapes.cc" "${tensorrt}/unreadable_v2.cc" "${tensorrt}/workspace.cc")
add_library(bertfuse_trt MODULE ${tensorrt_sources} "${tensorrt}/device.cc")
target_link_libraries(bertfuse_trt PRIVATE bertfuse_core ${CMAKE_DL_LIBS} Threads::Threads)
if(TARGET bertfuse_cuda)
  target_compile_definitions(bertfuse_trt PRIVATE BERTFUSE_WITH_CUDA)
  target_link_libraries(bertfuse_trt PRIVATE CUDA::cudart_static)
endif()
# As bertfuse_ort: loads beside whatever libstdc++ the host process brought. And stays once it is loaded: a layer may
# outlive TensorRT's handle of the library.
target_link_options(bertfuse_trt PRIVATE
  "LINKER:--version-script=${tensorrt}/exports.map" LINKER:--no-undefined LINKER:--gc-sections
  LINKER:-z,nodelete -static-libstdc++ -static-libgcc)
set_target_properties(bertfuse_trt PROPERTIES
  LINKER_LANGUAGE CXX
  LINK_DEPENDS "${tensorrt}/exports.map"
  LIBRARY_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/lib")
install(TARGETS bertfuse_trt LIBRARY DESTINATION bertfuse/lib)

# For hosts that only dlopen a plugin library: registers the one beside it. Exports nothing.
add_library(bertfuse_trt_autoload MODULE "${tensorrt}/autoload.cc" "${tensorrt}/hosts.cc")
target_link_libraries(bertfuse_trt_autoload PRIVATE bertfuse_headers ${CMAKE_DL_LIBS})
target_link_options(bertfuse_trt_autoload PRIVATE
  "LINKER:--version-script=${tensorrt}/autoload.map" LINKER:--no-undefined LINKER:--gc-sections
  -static-libstdc++ -static-libgcc)
set_target_properties(bertfuse_trt_autoload PROPERTIES
  LINK_DEPENDS "${tensorrt}/autoload.map"
  LIBRARY_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/lib")
install(TARGETS bertfuse_trt_autoload LIBRARY DESTINATION bertfuse/lib)
