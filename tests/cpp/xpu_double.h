// SPDX-License-Identifier: MIT
/// @file A double of libc10_xpu: the functions of c10::xpu that the xpu glue calls, and those it must never call, defined
/// against torch's own headers over queues and memory of the SYCL CPU device, with the allocator's rules of pools. The
/// allocator for pinned memory is doubled too, and the steps of recording a graph (defined here, they come before
/// libsycl's, which they call). Every call is written down, and any can be made to fail. Threads: any.
#pragma once

#include <c10/xpu/XPUCachingAllocator.h>
#include <c10/xpu/XPUStream.h>

#include <cstddef>
#include <string>
#include <vector>

namespace xpugraph::xpu_double {

/// What was called since clear(), by name, in order. Of the steps of recording: begin_recording, end_recording, empty (of
/// a native recording), finalize. Of queues: wait.
std::vector<std::string> calls();
/// How often `name` was called since clear().
std::size_t count(const std::string& name);
void clear();

/// The `nth` call of `name` from now on throws, `times` times: c10::Error from torch's functions, sycl::exception with
/// `text` from the steps of recording. Before it has had any effect, unless said otherwise.
void fail(const std::string& name, int nth = 1, int times = 1, const std::string& text = "injected");
/// As fail, for beginAllocateToPool and the host allocator's begin: after the use was counted, where torch itself checks.
void fail_after_counting(const std::string& name);
void no_failures();

/// What becomes of native recording: queues say that they are Level Zero's unless it is absent; then the runtime refuses
/// it as this device does, or seems to have it: such a graph does not tell its nodes, nor before its end whether it is empty.
enum class Native { absent, refused, works };
void set_native(Native mode);
Native native();
/// A native recording whose end fails leaves its queue recording for ever.
void sticks_when_end_fails(bool sticks);
bool sticks_when_end_fails();

/// Writes down one call; throws when it is to fail. For the parts of the double.
void note(const char* name);
bool fails_after_counting(const char* name);

/// Memory of torch's allocator for the calling thread's current stream of device 0, as a tensor gets it.
inline void* allocate(std::size_t bytes) { return c10::xpu::XPUCachingAllocator::get()->raw_alloc(bytes); }
inline void free(void* pointer) { c10::xpu::XPUCachingAllocator::get()->raw_delete(pointer); }
/// True when `pointer` was handed out from a private pool.
bool in_a_pool(void* pointer);

/// Bytes taken from the device, by all pools together.
std::size_t reserved();
/// Bytes handed out and not freed, of all pools.
std::size_t used();
/// Pools with a use, of the device's allocator and of the pinned memory's.
std::size_t pools_in_use();
std::size_t host_pools_in_use();
/// Scopes of allocation that have begun and not ended, of both allocators.
std::size_t open_scopes();
/// Captures marked as begun and not as ended (torch 2.14 and later).
int marked_captures();

}  // namespace xpugraph::xpu_double
