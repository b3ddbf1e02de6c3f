# Finds a SYCL, in this order:
#   1. the oneAPI compiler: an icpx on PATH or under $CMPLR_ROOT. Its headers and library serve any C++17 compiler; when
#      icpx itself is the compiler (CXX=icpx), -fsycl is given too;
#   2. the headers and libsycl of the intel-sycl-rt that is installed beside the Python that builds.
# Only SYCL host code is compiled here, never device code, so that a plain g++ does.
#
# Sets SYCL_FOUND, XPUGRAPH_SYCL_MAJOR, the target xpugraph_sycl_api, XPUGRAPH_PYTHON_PREFIX, and XPUGRAPH_SYCL_RPATH:
# where libsycl lies when that is outside the Python's own prefix. Nothing is cached: one build folder may serve one Python
# after another.
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c "import sys; print(sys.prefix)"
  OUTPUT_VARIABLE XPUGRAPH_PYTHON_PREFIX
  OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)

set(sycl_prefixes)
find_program(icpx icpx HINTS "$ENV{CMPLR_ROOT}/bin" NO_CACHE)
if(icpx)
  get_filename_component(icpx "${icpx}" REALPATH)
  get_filename_component(icpx_bin "${icpx}" DIRECTORY)
  get_filename_component(icpx_prefix "${icpx_bin}" DIRECTORY)
  list(APPEND sycl_prefixes "${icpx_prefix}")
endif()
list(APPEND sycl_prefixes "${XPUGRAPH_PYTHON_PREFIX}")

# Headers and library must be of one version, so both are looked for below one prefix, before the next is tried.
foreach(prefix IN LISTS sycl_prefixes)
  find_path(sycl_include sycl/sycl.hpp PATHS "${prefix}/include" NO_DEFAULT_PATH NO_CACHE)
  find_library(sycl_library sycl PATHS "${prefix}/lib" NO_DEFAULT_PATH NO_CACHE)
  if(sycl_include AND sycl_library)
    set(SYCL_FOUND TRUE)
    set(sycl_prefix "${prefix}")
    break()
  endif()
  unset(sycl_include)
  unset(sycl_library)
endforeach()

if(NOT SYCL_FOUND)
  message(STATUS "SYCL: not found (docs/install.md says which intel-sycl-rt this torch wants; or put icpx on PATH); building without it")
  return()
endif()

# The library's major version is its soname; the headers say which one they belong to.
file(STRINGS "${sycl_include}/sycl/version.hpp" sycl_version REGEX "define __LIBSYCL_MAJOR_VERSION")
string(REGEX MATCH "[0-9]+" XPUGRAPH_SYCL_MAJOR "${sycl_version}")
message(STATUS "SYCL: ${sycl_library} (libsycl.so.${XPUGRAPH_SYCL_MAJOR})")
add_library(xpugraph_sycl_api INTERFACE)
target_include_directories(xpugraph_sycl_api SYSTEM INTERFACE "${sycl_include}")
# A compiler other than icpx may include <sycl/sycl.hpp>; the header would warn that it was not given -fsycl.
target_compile_definitions(xpugraph_sycl_api INTERFACE SYCL_DISABLE_FSYCL_SYCLHPP_WARNING)
target_link_libraries(xpugraph_sycl_api INTERFACE "${sycl_library}")
if(CMAKE_CXX_COMPILER_ID STREQUAL "IntelLLVM")
  target_compile_options(xpugraph_sycl_api INTERFACE -fsycl)
  target_link_options(xpugraph_sycl_api INTERFACE -fsycl)
endif()
if(NOT sycl_prefix STREQUAL XPUGRAPH_PYTHON_PREFIX)
  get_filename_component(XPUGRAPH_SYCL_RPATH "${sycl_library}" DIRECTORY)
endif()
