# For CMAKE_TOOLCHAIN_FILE: compiles for ANYBIT_TARGET, a target of Zig's such as
# x86_64-linux-gnu.2.17, aarch64-macos or x86_64-windows-gnu, on any machine. The C++ library is
# linked in; of the C library, nothing newer than the version in the target's name is used.
set(ANYBIT_TARGET "" CACHE STRING "What to compile for, as Zig calls it")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ANYBIT_TARGET)
if(NOT ANYBIT_TARGET MATCHES "^(x86_64|aarch64)-(linux|macos|windows)")
  message(FATAL_ERROR "ANYBIT_TARGET must be like x86_64-linux-gnu.2.17, got '${ANYBIT_TARGET}'")
endif()
set(CMAKE_SYSTEM_PROCESSOR ${CMAKE_MATCH_1})
set(systems_linux Linux)
set(systems_macos Darwin)
set(systems_windows Windows)
set(CMAKE_SYSTEM_NAME ${systems_${CMAKE_MATCH_2}})

set(CMAKE_CXX_COMPILER ${CMAKE_CURRENT_LIST_DIR}/c++)
set(CMAKE_CXX_COMPILER_TARGET ${ANYBIT_TARGET})
set(CMAKE_AR ${CMAKE_CURRENT_LIST_DIR}/ar CACHE FILEPATH "")
set(CMAKE_RANLIB ${CMAKE_CURRENT_LIST_DIR}/ranlib CACHE FILEPATH "")
get_filename_component(source ${CMAKE_CURRENT_LIST_DIR}/../.. ABSOLUTE)
# Without the first, Zig traps what is undefined, in builds that do not optimize. By the second, no
# path of this machine gets into a file, so that another makes the same. nanobind needs the third: it
# has it from Python's header, but not from that of the stable ABI, and not from LLVM's library.
set(CMAKE_CXX_FLAGS_INIT "-fno-sanitize=undefined -ffile-prefix-map=${source}=. -include cstdio")
# Programs, which CMake makes to look at the compiler, share a stripped C++ library with the modules:
# the first link for a target compiles it.
set(CMAKE_MODULE_LINKER_FLAGS_INIT -s)
set(CMAKE_EXE_LINKER_FLAGS_INIT -s)
if(CMAKE_SYSTEM_NAME STREQUAL Darwin)
  string(APPEND CMAKE_MODULE_LINKER_FLAGS_INIT " -dynamiclib")  # it knows no bundles
endif()

# What several builds for one target have in common is compiled once, where there is a cache. To it,
# the compiler is a script that lies elsewhere each time.
find_program(ANYBIT_CACHE ccache)
if(ANYBIT_CACHE)
  execute_process(COMMAND ${CMAKE_CURRENT_LIST_DIR}/version OUTPUT_STRIP_TRAILING_WHITESPACE
                  OUTPUT_VARIABLE version COMMAND_ERROR_IS_FATAL ANY)
  file(SHA256 ${CMAKE_CXX_COMPILER} script)
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${source} CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1
    CCACHE_COMPILERTYPE=clang CCACHE_COMPILERCHECK=string:${version}-${script} ${ANYBIT_CACHE})
endif()

# Python's modules on Linux must share the system's unwinder: see unwinder.c.
option(ANYBIT_SYSTEM_UNWINDER "Take the system's unwinder instead of linking one in" OFF)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ANYBIT_SYSTEM_UNWINDER)
if(ANYBIT_SYSTEM_UNWINDER)
  set(unwinder ${CMAKE_BINARY_DIR}/unwinder-${ANYBIT_TARGET}/libgcc_s.so.1)
  if(NOT EXISTS ${unwinder})
    cmake_path(GET unwinder PARENT_PATH folder)
    file(MAKE_DIRECTORY ${folder})
    execute_process(COMMAND ${CMAKE_CURRENT_LIST_DIR}/c++ --target=${ANYBIT_TARGET} -x c -shared
                            -nostdlib -Wl,-soname,libgcc_s.so.1
                            ${CMAKE_CURRENT_LIST_DIR}/unwinder.c -o ${unwinder}
                    COMMAND_ERROR_IS_FATAL ANY)
  endif()
  string(APPEND CMAKE_MODULE_LINKER_FLAGS_INIT " ${unwinder}")
endif()

# Libraries of the building machine are none of the target's.
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY NEVER)
