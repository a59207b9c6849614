# bertfuse_debian_package(<package> <suite> <destination>): unpacks a package of a Debian suite, which need not be the
# machine's own, into a folder; without root, and leaving the system's package lists alone. Does nothing where that is
# not possible: the caller looks whether the files are there.
function(bertfuse_debian_package package suite destination)
  find_program(BERTFUSE_APT_GET apt-get)
  find_program(BERTFUSE_DPKG dpkg)
  mark_as_advanced(BERTFUSE_APT_GET BERTFUSE_DPKG)
  if(BERTFUSE_APT_GET AND BERTFUSE_DPKG)
    message(STATUS "Fetching ${package} of Debian ${suite} from this machine's package mirror")
    execute_process(
      COMMAND sh "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/debian_package.sh" "${package}" "${suite}" "${destination}"
      RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output TIMEOUT 180)
    if(NOT code EQUAL 0)
      message(STATUS "  failed: ${output}")
    endif()
  endif()
endfunction()
