# Included right after UCM's project(). CMake's Makefiles build the targets that a command
# line names one after the other; a single target that needs them all builds in parallel.
add_custom_target(needed)
add_dependencies(needed ${UCM_NEEDED})
if(BUILD_UNIT_TESTS AND CMAKE_BUILD_TYPE STREQUAL "Debug")
    # With a sanitizer the test programs are most of what is compiled; so it takes less time, and loses no check.
    # In the release they keep the optimiser: they contain code under test, from headers and included .cc files.
    cmake_language(DEFER CALL target_compile_options ucmstore.test PRIVATE -O0)
    cmake_language(DEFER CALL target_compile_options ucmshared.test PRIVATE -O0)
endif()
