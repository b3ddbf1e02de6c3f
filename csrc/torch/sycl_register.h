// SPDX-License-Identifier: MIT
/// @file What enable() registers with PyTorch, one function per source file. Each is called once, by enable() only.
#pragma once

namespace xpugraph::sycl_device {

void register_allocator();
void register_guard();  ///< streams and events
void register_hooks();  ///< PrivateUse1HooksInterface: generators, storage resize
void register_native_ops();
void register_fallback();  ///< every other operator

}  // namespace xpugraph::sycl_device
