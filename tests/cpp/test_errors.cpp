// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <type_traits>

#include "core/error.h"

namespace xpugraph {
namespace {

template <typename Leaf>
class ErrorLeaf : public ::testing::Test {};
using Leaves = ::testing::Types<ConfigError, InputError, StateError, CaptureError, OutOfMemoryError, DeviceError>;
TYPED_TEST_SUITE(ErrorLeaf, Leaves);

TYPED_TEST(ErrorLeaf, IsCaughtAsErrorAndKeepsItsMessage) {
  try {
    throw TypeParam("what happened");
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "what happened");
    return;
  }
  FAIL();
}

// The bindings translate each leaf to its own Python class, so that none may be a kind of another.
TYPED_TEST(ErrorLeaf, IsNoOtherLeaf) {
  const int bases = std::is_base_of_v<ConfigError, TypeParam> + std::is_base_of_v<InputError, TypeParam> +
                    std::is_base_of_v<StateError, TypeParam> + std::is_base_of_v<CaptureError, TypeParam> +
                    std::is_base_of_v<OutOfMemoryError, TypeParam> + std::is_base_of_v<DeviceError, TypeParam>;
  EXPECT_EQ(bases, 1);
}

}  // namespace
}  // namespace xpugraph
