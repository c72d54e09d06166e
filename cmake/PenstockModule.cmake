# penstock_module(NAME SOURCES ... DEPS <folders> LIBS <private external targets> PUBLIC_LIBS <public ones>
#                 TESTS foo_test.cc ... TEST_LIBS <extra targets for the tests> NO_PCH ALONE bar.cc ...)
#
# One static library `penstock_NAME` (alias penstock::NAME) per folder of src/, and one test executable
# `penstock_NAME_test` whose cases are registered one by one with CTest under the label NAME.
#
# With PENSTOCK_UNITY the compiler takes five sources at a time, where names of unnamed namespaces meet: a source that shares such a name
# with another one of its folder stands in ALONE. A module with NO_PCH compiles each of its sources alone.
function(penstock_module name)
  cmake_parse_arguments(ARG "NO_PCH" "" "SOURCES;DEPS;LIBS;PUBLIC_LIBS;TESTS;TEST_LIBS;ALONE" ${ARGN})
  set(target penstock_${name})
  if(ARG_SOURCES)
    add_library(${target} STATIC ${ARG_SOURCES})
    set(scope PUBLIC)
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  add_library(penstock::${name} ALIAS ${target})
  target_link_libraries(${target} ${scope} penstock_options ${ARG_PUBLIC_LIBS})
  foreach(dep ${ARG_DEPS})
    target_link_libraries(${target} ${scope} penstock_${dep})
  endforeach()
  if(ARG_LIBS)
    target_link_libraries(${target} PRIVATE ${ARG_LIBS})
  endif()
  if(PENSTOCK_PCH AND ARG_SOURCES AND NOT ARG_NO_PCH)
    target_precompile_headers(${target} REUSE_FROM penstock_pch)
  endif()
  if(PENSTOCK_UNITY AND ARG_SOURCES AND NOT ARG_NO_PCH)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 5)
    set_source_files_properties(${ARG_ALONE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
  if(PENSTOCK_TESTS AND ARG_TESTS)
    penstock_test(${target}_test LABEL ${name} SOURCES ${ARG_TESTS} LIBS ${target} ${ARG_TEST_LIBS})
  endif()
endfunction()

# penstock_test(TARGET LABEL label SOURCES ... LIBS ... [TIMEOUT s] [ENV "A=1"] [SLOW])
#
# With SLOW, cases whose names hold "Slow" get the label `slow` instead (scripts/test leaves them out).
function(penstock_test target)
  cmake_parse_arguments(ARG "SLOW" "LABEL;TIMEOUT" "SOURCES;LIBS;ENV" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${target} ${ARG_SOURCES})
  target_link_libraries(${target} PRIVATE ${ARG_LIBS} penstock_options GTest::gtest GTest::gtest_main)
  target_compile_definitions(${target} PRIVATE PENSTOCK_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
                                               PENSTOCK_BINARY_DIR="${CMAKE_BINARY_DIR}")
  set(filter "*")
  if(ARG_SLOW)
    set(filter "-*Slow*")
    penstock_register(${target} PREFIX "${ARG_LABEL}." LABEL slow FILTER "*Slow*"
      TIMEOUT 7200 ENV ${ARG_ENV})
  endif()
  penstock_register(${target} PREFIX "${ARG_LABEL}." LABEL ${ARG_LABEL} FILTER "${filter}"
    TIMEOUT ${ARG_TIMEOUT} ENV ${ARG_ENV})
endfunction()

# penstock_register(TARGET PREFIX p. LABEL label FILTER gtest-filter TIMEOUT s [ENV "A=1"])
#
# Registers the cases of a test executable, once more if it has been (under another prefix).
function(penstock_register target)
  cmake_parse_arguments(ARG "" "PREFIX;LABEL;FILTER;TIMEOUT" "ENV" ${ARGN})
  string(MAKE_C_IDENTIFIER "${target}_${ARG_PREFIX}${ARG_FILTER}" list)
  gtest_discover_tests(${target} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    TEST_PREFIX "${ARG_PREFIX}" TEST_FILTER "${ARG_FILTER}" TEST_LIST ${list}
    PROPERTIES LABELS "${ARG_LABEL}" TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT "${ARG_ENV}")
endfunction()
