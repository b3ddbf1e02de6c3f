// SPDX-License-Identifier: MIT
/// @file The host thread's OpenMP pool, which competes with the queue worker's for the same cores: with both alive
/// libgomp counts more threads than cores, stops spinning, and every parallel region of a replay pays a wake-up. Owns
/// nothing, throws nothing; any thread. Uses the OpenMP runtime that torch has loaded and links none.
#pragma once

namespace xpugraph::sycl_cpu {

/// Ends the idle OpenMP workers of the calling thread; they come back with its next parallel region.
void release_host_openmp() noexcept;

}  // namespace xpugraph::sycl_cpu
