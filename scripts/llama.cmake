# Read by CMake right after llama.cpp's own project() call (CMAKE_PROJECT_llama.cpp_INCLUDE).
# The Python package forces llama.cpp's "common" library on through the cache; Ratoon loads
# libllama alone, and common (argument parser, chat, HTTP) is about 40 % of the build.
# A plain variable shadows the cache entry.
set(LLAMA_BUILD_COMMON OFF)
