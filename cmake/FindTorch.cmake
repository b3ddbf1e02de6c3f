# The headers and libraries of the torch that the building Python imports. torch ships pybind11, and we use that copy, so
# that one process never holds two versions of pybind11's internals. Sets the target xpugraph_torch_api, XPUGRAPH_TORCH_CUDA,
# and c10_xpu: the library that a torch for Intel GPUs has.
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c
          "import torch, os; print(os.path.dirname(torch.__file__), torch.__version__, torch.version.cuda, sep='\\n')"
  RESULT_VARIABLE torch_result
  OUTPUT_VARIABLE torch_answer
  ERROR_VARIABLE torch_error
  OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT torch_result EQUAL 0)
  message(
    FATAL_ERROR
      "${Python_EXECUTABLE} cannot import torch. xpugraph is built against the torch that is installed, which pip hides "
      "from the build by default. Install torch first, then: pip install --no-build-isolation .\n"
      "Where the error names libur_loader or libsycl, LD_LIBRARY_PATH names a oneAPI toolkit: build in a shell that has not "
      "sourced setvars.sh.\n${torch_error}")
endif()
string(REPLACE "\n" ";" torch_answer "${torch_answer}")
list(GET torch_answer 0 torch_root)
list(GET torch_answer 1 torch_version)
list(GET torch_answer 2 XPUGRAPH_TORCH_CUDA) # "13.0", or "None" of a torch without CUDA
message(STATUS "torch: ${torch_version} in ${torch_root}")
find_library(c10_xpu c10_xpu PATHS "${torch_root}/lib" NO_DEFAULT_PATH NO_CACHE)

# From 2.14 on torch's headers are C++20; xpugraph's own code stays C++17.
set(torch_cxx_standard 17)
if(torch_version VERSION_GREATER_EQUAL 2.14)
  set(torch_cxx_standard 20)
endif()

add_library(xpugraph_torch_api INTERFACE)
target_compile_features(xpugraph_torch_api INTERFACE cxx_std_${torch_cxx_standard})
target_include_directories(xpugraph_torch_api SYSTEM INTERFACE "${torch_root}/include"
                                                               "${torch_root}/include/torch/csrc/api/include")
target_link_directories(xpugraph_torch_api INTERFACE "${torch_root}/lib")
target_link_libraries(xpugraph_torch_api INTERFACE torch_python torch torch_cpu c10)
