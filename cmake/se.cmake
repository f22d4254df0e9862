# Build helpers. A folder's CMakeLists.txt lists its sources and its dependencies with se_library and
# se_test, so that the module graph is visible in the build; tools/check_layers.py checks the includes.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

find_program(SE_CCACHE ccache)
if(SE_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SE_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${SE_CCACHE})
endif()

find_package(Threads REQUIRED)
find_path(SE_FMT_INCLUDE fmt/core.h REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)

# Floating point is IEEE everywhere: no contraction unless a kernel writes the fma itself, no fast-math.
add_library(se_flags INTERFACE)
target_compile_options(se_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized -Wno-restrict>
    -ffp-contract=off -fno-math-errno>)
if(SE_WERROR)
  target_compile_options(se_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(SE_SANITIZE)
  target_compile_options(se_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${SE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -O1 -g1>)
  target_link_options(se_flags INTERFACE -fsanitize=${SE_SANITIZE})
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1 -DSE_DEBUG=1")
target_include_directories(se_flags INTERFACE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
target_link_libraries(se_flags INTERFACE Threads::Threads)

enable_testing()  # a build without tests may have the GPU's checks
if(SE_TESTS)
  find_package(GTest REQUIRED)
endif()

# se_library(NAME SOURCES a.cc b.cc [AVX2 x_avx2.cc] [AVX512 y_avx512.cc] [AVX512BF16 ...] [AMX z_amx.cc]
#            [DEPS se_base ...])
# AVX2, AVX512, AVX512BF16 and AMX sources are compiled for that level; they are called only after a run-time check.
function(se_library name)
  cmake_parse_arguments(A "" "" "SOURCES;AVX2;AVX512;AVX512BF16;AMX;DEPS" ${ARGN})
  add_library(${name} STATIC ${A_SOURCES} ${A_AVX2} ${A_AVX512} ${A_AVX512BF16} ${A_AMX})
  target_link_libraries(${name} PUBLIC se_flags ${A_DEPS})
  if(A_AVX2)
    set_source_files_properties(${A_AVX2} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
  endif()
  # GCC 12 warns of its own intrinsics' undefined operands.
  set(avx512 "-mavx2;-mfma;-mf16c;-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx512vnni;-Wno-uninitialized")
  if(A_AVX512)
    set_source_files_properties(${A_AVX512} PROPERTIES COMPILE_OPTIONS "${avx512}")
  endif()
  if(A_AVX512BF16)
    set_source_files_properties(${A_AVX512BF16} PROPERTIES COMPILE_OPTIONS "${avx512};-mavx512bf16")
  endif()
  if(A_AMX)
    set_source_files_properties(${A_AMX} PROPERTIES COMPILE_OPTIONS "${avx512};-mamx-tile;-mamx-int8;-mamx-bf16"
      COMPILE_DEFINITIONS "$<$<BOOL:${SE_EMULATE_TILES}>:SE_EMULATE_TILES>")
  endif()
endfunction()

# se_test(NAME SOURCES a_test.cc [DEPS se_x ...] [LABEL fast|slow])  one GoogleTest program.
# Tests run in the source root, so that goldens are found by their path in the tree.
function(se_test name)
  if(NOT SE_TESTS)
    return()
  endif()
  cmake_parse_arguments(A "" "LABEL" "SOURCES;DEPS" ${ARGN})
  if(NOT A_LABEL)
    set(A_LABEL fast)
  endif()
  add_executable(${name} ${A_SOURCES})
  target_link_libraries(${name} PRIVATE se_flags ${A_DEPS} GTest::gtest GTest::gtest_main)
  target_compile_options(${name} PRIVATE -O1)  # tests are compiled more often than they run
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS ${A_LABEL})
endfunction()

# se_stage(AXIS NAME SOURCES ... [AVX2 ...] [DEPS ...])  one stage of a plan: library se_stage_AXIS_NAME,
# registered in the generated table. Its source defines  const StageEntry se::stage_AXIS_NAME.
function(se_stage axis name)
  se_library(se_stage_${axis}_${name} ${ARGN})
  target_link_libraries(se_stage_${axis}_${name} PUBLIC se_sparse)
  set_property(GLOBAL APPEND PROPERTY SE_STAGES ${axis}_${name})
endfunction()

# se_cuda_sources(a.cu b.cc ...)  the CUDA half of a folder, all in the library se_cuda. Nothing in a CPU build.
function(se_cuda_sources)
  if(NOT SE_CUDA)
    return()
  endif()
  if(NOT TARGET se_cuda)
    add_library(se_cuda STATIC)
    target_link_libraries(se_cuda PUBLIC se_flags se_device CUDA::cudart_static)
    # fmt 9 has no constexpr under nvcc: its compile-time check of formats must be off there.
    target_compile_definitions(se_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:FMT_CONSTEVAL=>)
    # Written out: CMake 3.25 does not know 90a.
    target_compile_options(se_flags INTERFACE
      $<$<COMPILE_LANGUAGE:CUDA>:-gencode=arch=compute_90a,code=sm_90a>)
  endif()
  list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  target_sources(se_cuda PRIVATE ${ARGN})
endfunction()
