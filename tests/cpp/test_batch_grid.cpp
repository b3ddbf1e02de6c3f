// SPDX-License-Identifier: MIT
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "core/batch_grid.h"
#include "core/error.h"
#include "expect_error.h"

namespace xpugraph {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(BatchGrid, RegularHoldsOneTwoFourAndMultiplesOfEight) {
  EXPECT_THAT(BatchGrid::regular(32, 256).sizes(), ElementsAre(1, 2, 4, 8, 16, 24, 32));
  EXPECT_EQ(BatchGrid::regular(256, 256).sizes().size(), 35u);
}

TEST(BatchGrid, RegularRecordsTheLimitItself) {
  EXPECT_THAT(BatchGrid::regular(1, 256).sizes(), ElementsAre(1));
  EXPECT_THAT(BatchGrid::regular(3, 256).sizes(), ElementsAre(1, 2, 3));
  EXPECT_THAT(BatchGrid::regular(7, 256).sizes(), ElementsAre(1, 2, 4, 7));
  EXPECT_THAT(BatchGrid::regular(17, 256).sizes(), ElementsAre(1, 2, 4, 8, 16, 17));
}

TEST(BatchGrid, RegularStopsAtTheCap) {
  EXPECT_THAT(BatchGrid::regular(1000, 16).sizes(), ElementsAre(1, 2, 4, 8, 16));
  EXPECT_THAT(BatchGrid::regular(1000, 20).sizes(), ElementsAre(1, 2, 4, 8, 16, 20));
  EXPECT_EQ(BatchGrid::regular(std::numeric_limits<std::int64_t>::max(), 8).largest(), 8);
}

TEST(BatchGrid, RegularRefusesWhatIsOutOfRange) {
  expect_error<ConfigError>([] { BatchGrid::regular(0, 256); }, "largest batch seen is 0");
  expect_error<ConfigError>([] { BatchGrid::regular(-8, 256); }, "largest batch seen is -8");
  expect_error<ConfigError>([] { BatchGrid::regular(8, 0); }, "max_recorded_batch_size is 0");
  const std::int64_t too_large = BatchGrid::kMaxBatchSize + 1;
  expect_error<ConfigError>([&] { BatchGrid::regular(too_large, too_large); }, "max_recorded_batch_size");
  EXPECT_EQ(BatchGrid::regular(BatchGrid::kMaxBatchSize, too_large).largest(), BatchGrid::kMaxBatchSize);
}

TEST(BatchGrid, FromSizesSortsAndRemovesRepeats) {
  EXPECT_THAT(BatchGrid::from_sizes({5, 3, 64, 3, 1, 5}).sizes(), ElementsAre(1, 3, 5, 64));
}

TEST(BatchGrid, FromSizesRefusesWhatIsOutOfRange) {
  expect_error<ConfigError>([] { BatchGrid::from_sizes({}); }, "batch_sizes is empty");
  expect_error<ConfigError>([] { BatchGrid::from_sizes({4, 0}); }, "batch_sizes holds 0");
  expect_error<ConfigError>([] { BatchGrid::from_sizes({-1}); }, "batch_sizes holds -1");
  expect_error<ConfigError>([] { BatchGrid::from_sizes({(1 << 20) + 1}); }, "batch_sizes holds 1048577");
  EXPECT_EQ(BatchGrid::from_sizes({1 << 20}).ceil(1), 1 << 20);
}

TEST(BatchGrid, CeilIsTheSmallestSizeThatHolds) {
  for (const BatchGrid& grid :
       {BatchGrid::regular(256, 256), BatchGrid::regular(77, 100), BatchGrid::from_sizes({3, 7, 8, 50}),
        BatchGrid::from_sizes({1}), BatchGrid::from_sizes({9})}) {
    for (std::int64_t batch = 1; batch <= grid.largest(); ++batch) {
      const auto& sizes = grid.sizes();
      ASSERT_EQ(grid.ceil(batch), *std::lower_bound(sizes.begin(), sizes.end(), batch)) << batch;
      ASSERT_EQ(grid.contains(batch), std::find(sizes.begin(), sizes.end(), batch) != sizes.end()) << batch;
    }
  }
}

TEST(BatchGrid, CeilRefusesWhatNoSizeHolds) {
  const BatchGrid grid = BatchGrid::from_sizes({2, 6});
  expect_error<InputError>([&] { grid.ceil(0); }, "0 rows");
  expect_error<InputError>([&] { grid.ceil(-3); }, "-3 rows");
  expect_error<InputError>([&] { grid.ceil(7); }, "7 rows");
  expect_error<InputError>([&] { grid.ceil(std::numeric_limits<std::int64_t>::max()); }, "1..6");
  expect_error<InputError>([&] { grid.ceil(std::numeric_limits<std::int64_t>::min()); }, "1..6");
}

TEST(BatchGrid, ContainsAnswersForAnyNumber) {
  const BatchGrid grid = BatchGrid::from_sizes({2, 6});
  for (std::int64_t other : {-6, -1, 0, 1, 3, 5, 7, 1 << 20}) EXPECT_FALSE(grid.contains(other)) << other;
}

TEST(BatchGrid, WithoutLeavesTheRest) {
  const BatchGrid grid = BatchGrid::from_sizes({2, 6, 10});
  EXPECT_THAT(grid.without(6).sizes(), ElementsAre(2, 10));
  EXPECT_EQ(grid.without(6).ceil(3), 10);
  EXPECT_EQ(grid.without(10).largest(), 6);
  EXPECT_THAT(grid.without(5).sizes(), ElementsAre(2, 6, 10));
  EXPECT_THAT(grid.sizes(), ElementsAre(2, 6, 10));
}

TEST(BatchGrid, WithoutTheLastSizeIsEmpty) {
  const BatchGrid empty = BatchGrid::from_sizes({4}).without(4);
  EXPECT_TRUE(empty.empty());
  EXPECT_EQ(empty.largest(), 0);
  EXPECT_FALSE(empty.contains(4));
  EXPECT_FALSE(empty.contains(0));
  expect_error<InputError>([&] { empty.ceil(1); }, "1 rows");
  EXPECT_TRUE(BatchGrid().empty());
}

}  // namespace
}  // namespace xpugraph
