# Sets ONNXRUNTIME_INCLUDE_DIR to a folder with onnxruntime_c_api.h of version 1.21 or newer. Looked for in this order:
#   1. -DONNXRUNTIME_INCLUDE_DIR=…
#   2. the system (package libonnxruntime-dev)
#   3. what an earlier configuration downloaded
#   4. the release archive of the ONNX Runtime project
#   5. Debian's package, through the machine's own package mirror
# No Python wheel carries these headers. Only the headers are used: nothing links against ONNX Runtime.
include(DebianPackage)

set(BERTFUSE_ORT_VERSION 1.21.0)
set(BERTFUSE_ORT_API_VERSION 21)
set(BERTFUSE_ORT_HEADERS "${BERTFUSE_CACHE_DIR}/onnxruntime-${BERTFUSE_ORT_VERSION}")
set(ONNXRUNTIME_INCLUDE_DIR "" CACHE PATH "Folder of onnxruntime_c_api.h (found or downloaded if empty)")

# Sets ${result} to whether that folder holds a header that is new enough.
function(bertfuse_check_ort_headers folder result)
  set(${result} FALSE PARENT_SCOPE)
  if(EXISTS "${folder}/onnxruntime_c_api.h")
    file(STRINGS "${folder}/onnxruntime_c_api.h" line REGEX "^#define ORT_API_VERSION [0-9]+")
    string(REGEX MATCH "[0-9]+" version "${line}")
    if(version AND NOT version LESS BERTFUSE_ORT_API_VERSION)
      set(${result} TRUE PARENT_SCOPE)
    endif()
  endif()
endfunction()

# Copies the headers below `root`, wherever they are, to the cache.
function(bertfuse_keep_ort_headers root)
  file(GLOB_RECURSE found "${root}/*/onnxruntime_c_api.h")
  if(found)
    list(GET found 0 header)
    get_filename_component(folder "${header}" DIRECTORY)
    file(MAKE_DIRECTORY "${BERTFUSE_ORT_HEADERS}")
    file(GLOB headers "${folder}/*.h")
    file(COPY ${headers} DESTINATION "${BERTFUSE_ORT_HEADERS}")
  endif()
endfunction()

function(bertfuse_fetch_ort_release)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    set(machine aarch64)
  else()
    set(machine x64)
  endif()
  set(name "onnxruntime-linux-${machine}-${BERTFUSE_ORT_VERSION}")
  set(archive "${CMAKE_CURRENT_BINARY_DIR}/${name}.tgz")
  file(DOWNLOAD
    "https://github.com/microsoft/onnxruntime/releases/download/v${BERTFUSE_ORT_VERSION}/${name}.tgz" "${archive}"
    TIMEOUT 60 INACTIVITY_TIMEOUT 10 TLS_VERIFY ON STATUS status)
  list(GET status 0 code)
  if(code EQUAL 0)
    execute_process(COMMAND "${CMAKE_COMMAND}" -E tar xzf "${archive}" WORKING_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}"
                    RESULT_VARIABLE code ERROR_QUIET)
    bertfuse_keep_ort_headers("${CMAKE_CURRENT_BINARY_DIR}/${name}")
    file(REMOVE_RECURSE "${CMAKE_CURRENT_BINARY_DIR}/${name}")
  endif()
  file(REMOVE "${archive}")
endfunction()

function(bertfuse_fetch_ort_package)
  bertfuse_debian_package(libonnxruntime-dev trixie "${CMAKE_CURRENT_BINARY_DIR}/libonnxruntime-dev")
  bertfuse_keep_ort_headers("${CMAKE_CURRENT_BINARY_DIR}/libonnxruntime-dev")
endfunction()

if(ONNXRUNTIME_INCLUDE_DIR)
  bertfuse_check_ort_headers("${ONNXRUNTIME_INCLUDE_DIR}" good)
  if(NOT good)
    message(FATAL_ERROR "ONNXRUNTIME_INCLUDE_DIR=${ONNXRUNTIME_INCLUDE_DIR} has no onnxruntime_c_api.h of ONNX Runtime "
                        "1.21 or newer")
  endif()
else()
  find_path(BERTFUSE_SYSTEM_ORT onnxruntime_c_api.h PATH_SUFFIXES onnxruntime onnxruntime/core/session)
  mark_as_advanced(BERTFUSE_SYSTEM_ORT)
  set(folder "${BERTFUSE_SYSTEM_ORT}")
  bertfuse_check_ort_headers("${folder}" good)
  foreach(fetch "" bertfuse_fetch_ort_release bertfuse_fetch_ort_package)
    if(good)
      break()
    endif()
    if(fetch STREQUAL "bertfuse_fetch_ort_release")
      bertfuse_fetch_ort_release()
    elseif(fetch STREQUAL "bertfuse_fetch_ort_package")
      bertfuse_fetch_ort_package()
    endif()
    set(folder "${BERTFUSE_ORT_HEADERS}")
    bertfuse_check_ort_headers("${folder}" good)
  endforeach()
  if(NOT good)
    message(FATAL_ERROR "The C headers of ONNX Runtime 1.21 or newer are not here and could not be downloaded. Install "
                        "libonnxruntime-dev, or unpack a release archive of ONNX Runtime and configure with "
                        "-DONNXRUNTIME_INCLUDE_DIR=<its include folder>.")
  endif()
  set(ONNXRUNTIME_INCLUDE_DIR "${folder}")
endif()
message(STATUS "ONNX Runtime headers: ${ONNXRUNTIME_INCLUDE_DIR}")
