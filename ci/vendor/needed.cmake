# Included right after UCM's project(). CMake's Makefiles build the targets that a command
# line names one after the other; a single target that needs them all builds in parallel.
add_custom_target(needed)
add_dependencies(needed ${UCM_NEEDED})
