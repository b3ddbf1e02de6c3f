# xpugraph_options: the compile options of every target of ours, and of nobody else's.
add_library(xpugraph_options INTERFACE)
target_compile_options(xpugraph_options INTERFACE -Wall -Wextra -Wno-unused-parameter)
if(CMAKE_CXX_COMPILER_ID STREQUAL "IntelLLVM")
  # As every other compiler does; the default of icpx is fast math, which may ignore NaN and infinity and reorders sums.
  target_compile_options(xpugraph_options INTERFACE -fp-model=precise)
endif()
if(XPUGRAPH_WERROR)
  target_compile_options(xpugraph_options INTERFACE -Werror)
endif()
if(XPUGRAPH_SANITIZE)
  target_compile_options(xpugraph_options INTERFACE -fsanitize=address,undefined -fno-omit-frame-pointer)
  target_link_options(xpugraph_options INTERFACE -fsanitize=address,undefined)
endif()
