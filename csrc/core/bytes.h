// SPDX-License-Identifier: MIT
/// @file Arithmetic on byte sizes that cannot wrap around.
/// Owns nothing. Throws OutOfMemoryError: a size that does not fit in size_t is more memory than there can be.
/// Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/error.h"

namespace xpugraph {

/// a * b. @throws OutOfMemoryError when it overflows.
inline std::size_t checked_mul(std::size_t a, std::size_t b) {
  std::size_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    throw OutOfMemoryError(std::to_string(a) + " * " + std::to_string(b) + " bytes is more than an address can name");
  }
  return product;
}

/// a + b. @throws OutOfMemoryError when it overflows.
inline std::size_t checked_add(std::size_t a, std::size_t b) {
  std::size_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) {
    throw OutOfMemoryError(std::to_string(a) + " + " + std::to_string(b) + " bytes is more than an address can name");
  }
  return sum;
}

}  // namespace xpugraph
