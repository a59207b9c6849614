# BERTFUSE_MANYLINUX: libraries that load wherever glibc is 2.28 or newer, for wheels of the platform manylinux_2_28.
#
# The machine's own compiler and nvcc compile, as for every other build; zig (ziglang from PyPI) links, for it knows which
# symbols each glibc has, and takes older versions of them than the machine's own linker would. libstdc++ is the
# compiler's, linked in; unwinding is LLVM's, since libgcc's needs a function of glibc 2.35.
option(BERTFUSE_MANYLINUX "Link for glibc 2.28 and newer; needs ziglang from PyPI" OFF)
if(NOT BERTFUSE_MANYLINUX)
  return()
endif()
execute_process(
  COMMAND "${Python3_EXECUTABLE}" -c
          "import importlib.util as u, os; print(os.path.join(os.path.dirname(u.find_spec('ziglang').origin), 'zig'))"
  OUTPUT_VARIABLE zig OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
execute_process(COMMAND "${CMAKE_CXX_COMPILER}" -print-file-name=libstdc++.a
                OUTPUT_VARIABLE libstdcxx OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT EXISTS "${zig}")
  message(FATAL_ERROR "BERTFUSE_MANYLINUX needs zig as the linker: pip install ziglang")
elseif(NOT IS_ABSOLUTE "${libstdcxx}")
  message(FATAL_ERROR "BERTFUSE_MANYLINUX needs ${CMAKE_CXX_COMPILER} to have libstdc++.a: install GCC")
endif()
# -lrt by name: a newer glibc's librt.a, which CMake finds for CUDA's runtime, is empty.
set(CMAKE_CXX_CREATE_SHARED_MODULE
    "${zig} cc -target ${CMAKE_SYSTEM_PROCESSOR}-linux-gnu.2.28 -shared -s <LINK_FLAGS> -o <TARGET> <OBJECTS> <LINK_LIBRARIES> ${libstdcxx} -lunwind -lrt")
add_library(bertfuse_glibc STATIC plugins/core/glibc_2_28.cc)
link_libraries(bertfuse_glibc)
