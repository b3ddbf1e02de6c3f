# What the xpu glue (csrc/torch/xpu_hooks.cpp) is built with. Every torch ships the headers of c10/xpu, so that the glue
# compiles, and its tests run against a double of the library, wherever SYCL is; only a torch for XPU has libc10_xpu.
#
# Needs torch_root and c10_xpu of FindTorch, and xpugraph_sycl_api of FindSycl. Sets XPU_FOUND (libc10_xpu is there) and the targets
# xpugraph_xpu_headers and, with XPU_FOUND, xpugraph_xpu_api.
set(XPU_FOUND FALSE)
if(NOT EXISTS "${torch_root}/include/c10/xpu/XPUStream.h")
  if(c10_xpu)
    message(FATAL_ERROR "This torch has ${c10_xpu} and no headers of c10/xpu: install it again, or build without: -DXPUGRAPH_SYCL=OFF")
  endif()
  message(STATUS "XPU: this torch ships no c10/xpu headers; building without torch.xpu")
  return()
endif()

add_library(xpugraph_xpu_headers INTERFACE)
target_link_libraries(xpugraph_xpu_headers INTERFACE xpugraph_sycl_api)
target_include_directories(xpugraph_xpu_headers SYSTEM INTERFACE "${torch_root}/include")
target_compile_features(xpugraph_xpu_headers INTERFACE cxx_std_${torch_cxx_standard})
# torch's own build generates this header, and only a build for XPU does. It has one line: how libc10_xpu was linked.
if(NOT EXISTS "${torch_root}/include/c10/xpu/impl/xpu_cmake_macros.h")
  file(WRITE "${CMAKE_CURRENT_BINARY_DIR}/stand_in/c10/xpu/impl/xpu_cmake_macros.h"
       "#pragma once\n#define C10_XPU_BUILD_SHARED_LIBS\n")
  target_include_directories(xpugraph_xpu_headers SYSTEM INTERFACE "${CMAKE_CURRENT_BINARY_DIR}/stand_in")
endif()

if(c10_xpu)
  message(STATUS "XPU: ${c10_xpu}")
  # One process can only use one libsycl, and its major versions do not mix: ours must be the one torch was linked with.
  file(STRINGS "${c10_xpu}" needed_sycl REGEX "libsycl\\.so\\.[0-9]+" LIMIT_COUNT 1)
  string(REGEX MATCH "libsycl\\.so\\.([0-9]+)" needed_sycl "${needed_sycl}")
  set(torch_sycl_major "${CMAKE_MATCH_1}")
  if(torch_sycl_major AND NOT torch_sycl_major STREQUAL XPUGRAPH_SYCL_MAJOR)
    message(
      FATAL_ERROR
        "This torch uses libsycl.so.${torch_sycl_major}, and the SYCL that was found is libsycl.so.${XPUGRAPH_SYCL_MAJOR} "
        "(see above). Build with torch's own: install torch again with the intel-sycl-rt that it requires (2025.x is "
        "libsycl.so.8, 2026.x is libsycl.so.9), and give no XPUGRAPH_SYCL_ROOT.")
  endif()
  set(XPU_FOUND TRUE)
  add_library(xpugraph_xpu_api INTERFACE)
  target_link_libraries(xpugraph_xpu_api INTERFACE xpugraph_xpu_headers "${c10_xpu}")
else()
  message(STATUS "XPU: this torch has no libc10_xpu (it is not a build for Intel GPUs); building without torch.xpu")
endif()
