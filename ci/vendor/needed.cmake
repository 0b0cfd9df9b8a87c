# Included right after UCM's project(). CMake's Makefiles build the targets that a command
# line names one after the other; a single target that needs them all builds in parallel.
add_custom_target(needed)
add_dependencies(needed ${UCM_NEEDED})
if(BUILD_UNIT_TESTS)
    # Only what is tested must be as fast as it is shipped; its tests compile in half the time so. Fortified
    # headers want an optimiser.
    cmake_language(DEFER CALL target_compile_options ucmstore.test PRIVATE -O0 -U_FORTIFY_SOURCE)
    cmake_language(DEFER CALL target_compile_options ucmshared.test PRIVATE -O0 -U_FORTIFY_SOURCE)
endif()
