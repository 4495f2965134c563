# Takes debugging information and LLVM's bitcode out of a static library:
#   cmake -DLIBRARY=FILE -DSTRIP=PROGRAM [-DAR=PROGRAM] "-DREMOVE=section;section" -P strip.cmake
# With AR, members that end in .dwo go first. Rust's standard library for Windows (GNU) brings its debugging information so; some of
# them are objects without a section, which strip refuses.
if(NOT STRIP)
  message(FATAL_ERROR "ICEFORMER_STRIP: there is no strip")
endif()

function(run)
  execute_process(COMMAND ${ARGV} OUTPUT_VARIABLE out ERROR_VARIABLE error RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "ICEFORMER_STRIP: ${ARGV}: ${error}")
  endif()
  set(out "${out}" PARENT_SCOPE)
endfunction()

if(AR)
  run(${AR} t ${LIBRARY})
  string(REGEX MATCHALL "[^\r\n]+\\.dwo" members "${out}")
  if(members)
    run(${AR} d ${LIBRARY} ${members})
  endif()
endif()

set(arguments -S)
foreach(section IN LISTS REMOVE)
  list(APPEND arguments -R ${section})
endforeach()
run(${STRIP} ${arguments} ${LIBRARY})
