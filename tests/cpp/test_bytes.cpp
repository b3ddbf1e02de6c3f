// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <limits>

#include "core/bytes.h"
#include "expect_error.h"

namespace xpugraph {
namespace {

constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();

TEST(Bytes, MultipliesUpToTheLimit) {
  EXPECT_EQ(checked_mul(0, kMost), 0u);
  EXPECT_EQ(checked_mul(kMost, 1), kMost);
  EXPECT_EQ(checked_mul(std::size_t{1} << 32, (std::size_t{1} << 32) - 1),
            (kMost - (kMost >> 32)) & ~std::size_t{0xffffffff});
  EXPECT_EQ(checked_mul(3, kMost / 3), kMost / 3 * 3);
}

TEST(Bytes, RefusesProductsThatWrap) {
  expect_error<OutOfMemoryError>([] { checked_mul(2, kMost / 2 + 1); }, "2 * 9223372036854775808");
  expect_error<OutOfMemoryError>([] { checked_mul(std::size_t{1} << 32, std::size_t{1} << 32); }, "4294967296");
}

TEST(Bytes, AddsUpToTheLimit) {
  EXPECT_EQ(checked_add(kMost - 1, 1), kMost);
  EXPECT_EQ(checked_add(0, 0), 0u);
}

TEST(Bytes, RefusesSumsThatWrap) {
  expect_error<OutOfMemoryError>([] { checked_add(kMost, 1); }, "18446744073709551615 + 1");
}

}  // namespace
}  // namespace xpugraph
