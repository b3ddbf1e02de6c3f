// SPDX-License-Identifier: MIT
/// @file XpuHooks: torch.xpu's streams and allocator, as SyclRuntime asks for them (device_hooks.h). This file pair is all
/// of xpugraph that speaks to c10::xpu; what it calls is in the headers of torch 2.11 to 2.14. It waits for streams, never
/// for a device, and never empties torch's cache.
///
/// Owns one in-order queue per device, the capture stream, which torch's pool of streams cannot hand to anybody else (those
/// that were renewed stay beside it), and one use of each pool that it created. Both stay alive until the process ends or
/// release_pool.
/// Throws: ConfigError for an unknown pool, CaptureError where another pool already takes the thread's allocations (torch
/// asks the oldest route first), CaptureError and DeviceError with torch's or SYCL's own words.
/// Threads: any; the current stream and the routing of allocations are per thread, as device_hooks.h says.
///
/// torch counts the uses of a pool: the first begin or an explicit creation makes it with one, every begin adds one, and
/// only releasePool takes one away; ending an allocation scope does not. Here the creation's use is the SharedPool's, and
/// each begin's use is given back at its end, so that a failed capture leaves the count where it was. At zero the memory
/// stays with torch until torch itself empties its cache, as that of its own graphs does.
#pragma once

#include <memory>

#include "runtime/device_hooks.h"

namespace xpugraph {

std::shared_ptr<DeviceHooks> make_xpu_hooks();

}  // namespace xpugraph
