# Finds SYCL's headers and library. One process can use one libsycl only, and a torch for XPU brings its own, so the
# places are, in this order:
#   1. XPUGRAPH_SYCL_ROOT, for who has a torch that was built from source against a oneAPI toolkit;
#   2. the intel-sycl-rt of the Python that builds, wherever pip has put its files, and that Python's own prefix (conda);
#   3. a oneAPI compiler: icpx on PATH or under $CMPLR_ROOT. Never beside a torch for XPU.
# Only SYCL host code is compiled here, never device code, so any C++17 compiler does, icpx without -fsycl among them:
# with it, icpx would link the libsycl that it came with.
#
# Sets SYCL_FOUND, XPUGRAPH_SYCL_MAJOR, the target xpugraph_sycl_api, XPUGRAPH_PYTHON_PREFIX, and XPUGRAPH_SYCL_RPATH:
# where libsycl lies when that is outside the Python's own prefix. Reads c10_xpu of FindTorch. Nothing is cached: one
# build folder may serve one Python after another.
set(sycl_places_script [[
import importlib.metadata, os, sys
print(sys.prefix)
try:
    files = importlib.metadata.files("intel-sycl-rt") or []
except importlib.metadata.PackageNotFoundError:
    files = []
for file in files:
    if file.parts[-3:] == ("include", "sycl", "sycl.hpp"):
        print(os.path.abspath(os.path.join(file.locate(), "..", "..", "..")))
]])
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c "${sycl_places_script}"
  OUTPUT_VARIABLE python_prefixes
  OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE "\n" ";" python_prefixes "${python_prefixes}")
list(GET python_prefixes 0 XPUGRAPH_PYTHON_PREFIX)
list(REVERSE python_prefixes)

set(XPUGRAPH_SYCL_ROOT "" CACHE PATH "Folder with SYCL's include and lib, instead of the one that is found")
if(XPUGRAPH_SYCL_ROOT)
  set(sycl_prefixes "${XPUGRAPH_SYCL_ROOT}")
else()
  set(sycl_prefixes ${python_prefixes})
  find_program(icpx icpx HINTS "$ENV{CMPLR_ROOT}/bin" NO_CACHE)
  if(icpx AND NOT c10_xpu)
    get_filename_component(icpx "${icpx}" REALPATH)
    get_filename_component(icpx_bin "${icpx}" DIRECTORY)
    get_filename_component(icpx_prefix "${icpx_bin}" DIRECTORY)
    list(APPEND sycl_prefixes "${icpx_prefix}")
  endif()
endif()

# Sets `result` to what tells releases of SYCL's headers apart: "__LIBSYCL_MAJOR_VERSION 9, ...".
function(sycl_release text result)
  set(release)
  foreach(macro IN ITEMS __LIBSYCL_MAJOR_VERSION __SYCL_COMPILER_VERSION SYCL_EXT_ONEAPI_GRAPH)
    string(REGEX MATCH "#define ${macro} +([0-9]+)" found "${text}")
    list(APPEND release "${macro} ${CMAKE_MATCH_1}")
  endforeach()
  list(JOIN release ", " release)
  set(${result} "${release}" PARENT_SCOPE)
endfunction()

# Headers and library must be of one version, so both are looked for below one prefix, before the next is tried.
foreach(prefix IN LISTS sycl_prefixes)
  if(NOT EXISTS "${prefix}/include/sycl/sycl.hpp")
    continue()
  endif()
  file(READ "${prefix}/include/sycl/version.hpp" sycl_headers)
  file(READ "${prefix}/include/sycl/feature_test.hpp" sycl_features)
  sycl_release("${sycl_headers}${sycl_features}" sycl_wanted)
  string(REGEX MATCH "[0-9]+" XPUGRAPH_SYCL_MAJOR "${sycl_wanted}")
  if(EXISTS "${prefix}/lib/libsycl.so.${XPUGRAPH_SYCL_MAJOR}")
    set(SYCL_FOUND TRUE)
    set(sycl_include "${prefix}/include")
    set(sycl_library "${prefix}/lib/libsycl.so.${XPUGRAPH_SYCL_MAJOR}")
    break()
  endif()
endforeach()

if(NOT SYCL_FOUND)
  list(JOIN sycl_prefixes ", " sycl_prefixes)
  if(XPUGRAPH_SYCL_ROOT)
    message(FATAL_ERROR "XPUGRAPH_SYCL_ROOT: ${XPUGRAPH_SYCL_ROOT} has no include/sycl/sycl.hpp with a lib/libsycl.so of its version")
  elseif(c10_xpu)
    message(
      FATAL_ERROR
        "This torch is a build for Intel GPUs (${c10_xpu}), and its SYCL was not found: neither headers nor libsycl of "
        "intel-sycl-rt below ${sycl_prefixes}. Install torch again, with the packages that it requires. For a torch that "
        "was built from source against a oneAPI toolkit: -DXPUGRAPH_SYCL_ROOT=/opt/intel/oneapi/compiler/latest. "
        "To do without the GPU: -DXPUGRAPH_SYCL=OFF")
  endif()
  message(STATUS "SYCL: not found (docs/install.md says which intel-sycl-rt this torch wants); building without it")
  return()
endif()
message(STATUS "SYCL: ${sycl_library} (${sycl_wanted})")

# What the compiler includes may be another's: CPATH, which setvars.sh sets, comes before any system folder.
file(WRITE "${CMAKE_CURRENT_BINARY_DIR}/sycl_seen.cpp" "#include <sycl/version.hpp>\n#include <sycl/feature_test.hpp>\n")
separate_arguments(sycl_flags UNIX_COMMAND "${CMAKE_CXX_FLAGS}")
execute_process(
  COMMAND "${CMAKE_CXX_COMPILER}" ${sycl_flags} -E -dM -isystem "${sycl_include}" "${CMAKE_CURRENT_BINARY_DIR}/sycl_seen.cpp"
  OUTPUT_VARIABLE sycl_headers COMMAND_ERROR_IS_FATAL ANY)
sycl_release("${sycl_headers}" sycl_seen)
if(NOT sycl_seen STREQUAL sycl_wanted)
  message(
    FATAL_ERROR
      "The compiler includes other SYCL headers (${sycl_seen}) than those of ${sycl_library} (${sycl_wanted}), which would "
      "be linked. Build in a shell that has not sourced setvars.sh, or: unset CPATH CPLUS_INCLUDE_PATH CXXFLAGS")
endif()

add_library(xpugraph_sycl_api INTERFACE)
target_include_directories(xpugraph_sycl_api SYSTEM INTERFACE "${sycl_include}")
# The header would warn that the compiler was not given -fsycl.
target_compile_definitions(xpugraph_sycl_api INTERFACE SYCL_DISABLE_FSYCL_SYCLHPP_WARNING)
target_link_libraries(xpugraph_sycl_api INTERFACE "${sycl_library}")
if(NOT sycl_library STREQUAL "${XPUGRAPH_PYTHON_PREFIX}/lib/libsycl.so.${XPUGRAPH_SYCL_MAJOR}")
  get_filename_component(XPUGRAPH_SYCL_RPATH "${sycl_library}" DIRECTORY)
endif()
