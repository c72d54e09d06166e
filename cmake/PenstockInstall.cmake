# `cmake --install BUILD --prefix DIR`: the binary, its configurations, the static libraries with their headers, the CMake package
# `penstock` (target penstock::penstock), documentation and the example that uses it. The tree may be moved afterwards.
include(CMakePackageConfigHelpers)

set(penstock_modules base hw model schedule trace cost sim plan tensor kernels weights text comm runtime train serve)
set(penstock_package ${CMAKE_INSTALL_LIBDIR}/cmake/penstock)

add_library(penstock_library INTERFACE)
set_target_properties(penstock_library PROPERTIES EXPORT_NAME penstock)
set(penstock_targets penstock_options penstock_library)
foreach(module ${penstock_modules})
  target_link_libraries(penstock_library INTERFACE penstock_${module})
  set_target_properties(penstock_${module} PROPERTIES EXPORT_NAME ${module})
  list(APPEND penstock_targets penstock_${module})
endforeach()
set_target_properties(penstock_options PROPERTIES EXPORT_NAME options)

install(TARGETS penstock)
install(TARGETS ${penstock_targets} EXPORT penstock ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT penstock NAMESPACE penstock:: FILE penstockTargets.cmake DESTINATION ${penstock_package})

# Headers keep their folders, which are those of the #include lines. Those of the commands, of single devices and of tests stay here.
install(DIRECTORY ${CMAKE_SOURCE_DIR}/src/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/penstock
  FILES_MATCHING PATTERN "*.h"
  PATTERN "cli" EXCLUDE PATTERN "kernels/cpu" EXCLUDE PATTERN "kernels/ref" EXCLUDE
  PATTERN "schedule/generators" EXCLUDE PATTERN "schedule/proof" EXCLUDE
  PATTERN "*_contract.h" EXCLUDE PATTERN "*test_support.h" EXCLUDE PATTERN "*_for_tests.h" EXCLUDE)

configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/penstockConfig.cmake.in ${CMAKE_BINARY_DIR}/penstockConfig.cmake
  INSTALL_DESTINATION ${penstock_package})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/penstockConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/penstockConfig.cmake ${CMAKE_BINARY_DIR}/penstockConfigVersion.cmake
  DESTINATION ${penstock_package})

install(DIRECTORY ${CMAKE_SOURCE_DIR}/configs/ DESTINATION ${CMAKE_INSTALL_DATADIR}/penstock)
install(FILES ${CMAKE_SOURCE_DIR}/README.md ${CMAKE_SOURCE_DIR}/ARCHITECTURE.md ${CMAKE_SOURCE_DIR}/CONTRIBUTING.md
  ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY ${CMAKE_SOURCE_DIR}/docs ${CMAKE_SOURCE_DIR}/examples DESTINATION ${CMAKE_INSTALL_DOCDIR})
