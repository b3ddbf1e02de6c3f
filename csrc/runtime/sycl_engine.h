// SPDX-License-Identifier: MIT
/// @file Which engine of the SYCL runtime records graphs: its command graph, which keeps nodes of its own, or native
/// recording, where the driver records (from oneAPI 2026.1 on Level Zero's V2 adapter). Native recording is tried first
/// where the runtime has it, and a size that it refuses at the begin is recorded by the command graph. Once a capture has
/// failed under it later on, at its end or in a forward that the command graph records, native recording is off for the
/// runtime's life. Which one it was is counted here. XPUGRAPH_NATIVE_RECORDING=0 in the environment turns it off. Threads:
/// any. No SYCL type appears here.
#pragma once

#include <cstddef>
#include <string>

namespace xpugraph::sycl_engine {

/// Whether to try native recording: the build's headers have it and the environment does not turn it off.
/// @throws ConfigError when XPUGRAPH_NATIVE_RECORDING is neither 0 nor 1.
bool native_wanted();

/// Graphs that were recorded in this process, by engine, and why native recording refused or failed the last time.
struct Recorded {
  std::size_t native = 0;
  std::size_t command_graph = 0;
  std::string refusal;
};
Recorded recorded();
void note_recorded(bool native);
void note_refusal(const std::string& why);

/// What this file was compiled against: major version of libsycl, version of the graph extension, and the header's date,
/// one "key: value" per line.
std::string build();
/// The devices that the SYCL runtime sees, one per line: fields "key: value" separated by "; ". The engine is found out by
/// making an empty graph; nothing is submitted. A runtime that fails leaves its words as the last line.
std::string devices();

}  // namespace xpugraph::sycl_engine
