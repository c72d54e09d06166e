# Every switch of the build in one place.
option(PENSTOCK_TESTS "Build the tests" ON)
option(PENSTOCK_BENCH "Build the micro benchmarks under bench/" OFF)
option(PENSTOCK_FUZZ "Build the libFuzzer targets (needs clang)" OFF)
option(PENSTOCK_MPI "Ranks on several machines over MPI" ON)
option(PENSTOCK_WERROR "Warnings are errors" ON)
option(PENSTOCK_CHECKS "PENSTOCK_DCHECK is active" OFF)
option(PENSTOCK_PCH "Precompile the headers of libraries: a third off a build from nothing" OFF)
set(PENSTOCK_SANITIZE "" CACHE STRING "empty, address or thread")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_NOHASHDIR=1
      CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} ${CCACHE_PROGRAM})
  if(PENSTOCK_PCH)  # what ccache asks for with precompiled headers
    list(INSERT CMAKE_CXX_COMPILER_LAUNCHER 3 CCACHE_SLOPPINESS=pch_defines,time_macros)
  endif()
endif()
find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM)
  add_link_options(-fuse-ld=mold)
endif()

add_library(penstock_options INTERFACE)
target_compile_options(penstock_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wno-missing-field-initializers -ffp-contract=off
  # GCC 12 reports these on its own std::string and std::vector (gcc bugs 105651, 105329).
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict;-Wno-stringop-overflow;-Wno-array-bounds;-Wno-maybe-uninitialized>)
target_compile_options(penstock_options INTERFACE -Werror=unused-result)
if(PENSTOCK_WERROR)
  target_compile_options(penstock_options INTERFACE -Werror)
endif()
target_include_directories(penstock_options INTERFACE ${CMAKE_SOURCE_DIR}/src)
if(PENSTOCK_CHECKS)
  target_compile_definitions(penstock_options INTERFACE PENSTOCK_CHECKS=1)
endif()
if(PENSTOCK_SANITIZE STREQUAL "address")
  target_compile_options(penstock_options INTERFACE
    -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(PENSTOCK_SANITIZE STREQUAL "thread")
  target_compile_options(penstock_options INTERFACE -fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(PENSTOCK_SANITIZE)
  message(FATAL_ERROR "PENSTOCK_SANITIZE must be empty, address or thread, not ${PENSTOCK_SANITIZE}")
endif()
if(PENSTOCK_FUZZ)
  target_compile_options(penstock_options INTERFACE
    -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
endif()
find_package(Threads REQUIRED)
target_link_libraries(penstock_options INTERFACE Threads::Threads)

# Only headers of libraries: a source that lacks one of ours, or of the standard library, fails in the other presets.
if(PENSTOCK_PCH)
  if(CCACHE_PROGRAM AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(penstock_options INTERFACE -fpch-preprocess)
  endif()
  file(WRITE ${CMAKE_BINARY_DIR}/pch.cc "")
  add_library(penstock_pch OBJECT ${CMAKE_BINARY_DIR}/pch.cc)
  target_link_libraries(penstock_pch PRIVATE penstock_options fmt::fmt tl::expected)
  target_precompile_headers(penstock_pch PRIVATE <fmt/format.h> <tl/expected.hpp>
    <algorithm> <functional> <memory> <string> <vector>)
endif()
