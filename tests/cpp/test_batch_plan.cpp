// SPDX-License-Identifier: MIT
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/batch_plan.h"
#include "core/error.h"
#include "expect_error.h"

namespace xpugraph {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<Chunk> chunks_of(const BatchGrid& grid, std::int64_t batch) {
  const BatchPlan plan(grid, batch);
  return {plan.begin(), plan.end()};
}

TEST(BatchPlan, OneChunkUpToTheLargestSize) {
  const BatchGrid grid = BatchGrid::regular(64, 64);
  EXPECT_THAT(chunks_of(grid, 1), ElementsAre(Chunk{1, 0, 1}));
  EXPECT_THAT(chunks_of(grid, 3), ElementsAre(Chunk{4, 0, 3}));
  EXPECT_THAT(chunks_of(grid, 17), ElementsAre(Chunk{24, 0, 17}));
  EXPECT_THAT(chunks_of(grid, 64), ElementsAre(Chunk{64, 0, 64}));
}

TEST(BatchPlan, ChunksOfTheLargestSizeThenTheRemainderByTheSameRule) {
  const BatchGrid grid = BatchGrid::regular(64, 64);
  EXPECT_THAT(chunks_of(grid, 65), ElementsAre(Chunk{64, 0, 64}, Chunk{1, 64, 1}));
  EXPECT_THAT(chunks_of(grid, 128), ElementsAre(Chunk{64, 0, 64}, Chunk{64, 64, 64}));
  EXPECT_THAT(chunks_of(grid, 145), ElementsAre(Chunk{64, 0, 64}, Chunk{64, 64, 64}, Chunk{24, 128, 17}));
}

TEST(BatchPlan, NoRowsAreNoChunks) {
  EXPECT_THAT(chunks_of(BatchGrid::regular(8, 8), 0), IsEmpty());
  EXPECT_THAT(chunks_of(BatchGrid(), 0), IsEmpty());
}

TEST(BatchPlan, RefusesNegativeBatchesAndEmptyGrids) {
  const BatchGrid grid = BatchGrid::regular(8, 8);
  expect_error<InputError>([&] { BatchPlan(grid, -1); }, "-1 rows");
  const BatchGrid empty;
  expect_error<InputError>([&] { BatchPlan(empty, 1); }, "no batch size is recorded");
}

class BatchPlanOverGrids : public ::testing::TestWithParam<std::vector<std::int64_t>> {};

// Every batch: the chunks tile it without gap or overlap, no smaller recorded size would do for any of them, and all
// but the last are full chunks of the largest size.
TEST_P(BatchPlanOverGrids, TilesEveryBatchWithTheSmallestSizes) {
  const BatchGrid grid = BatchGrid::from_sizes(GetParam());
  const auto& sizes = grid.sizes();
  for (std::int64_t batch = 1; batch <= 1100; ++batch) {
    const BatchPlan plan(grid, batch);
    std::int64_t covered = 0;
    std::int64_t count = 0;
    for (const Chunk chunk : plan) {
      ASSERT_EQ(chunk.offset, covered) << batch;
      ASSERT_GE(chunk.rows, 1) << batch;
      ASSERT_EQ(chunk.size, *std::lower_bound(sizes.begin(), sizes.end(), chunk.rows)) << batch;
      covered += chunk.rows;
      ++count;
      if (covered < batch) {
        ASSERT_EQ(chunk.size, grid.largest()) << batch;
        ASSERT_EQ(chunk.rows, grid.largest()) << batch;
      }
    }
    ASSERT_EQ(covered, batch);
    ASSERT_EQ(count, plan.chunks()) << batch;
    ASSERT_EQ(count, (batch + grid.largest() - 1) / grid.largest()) << batch;
  }
}

INSTANTIATE_TEST_SUITE_P(Grids, BatchPlanOverGrids,
                         ::testing::Values(BatchGrid::regular(256, 256).sizes(), BatchGrid::regular(1100, 1100).sizes(),
                                           BatchGrid::regular(17, 256).sizes(), std::vector<std::int64_t>{1},
                                           std::vector<std::int64_t>{7}, std::vector<std::int64_t>{2, 3, 5, 7, 11},
                                           std::vector<std::int64_t>{100, 1000}),
                         [](const auto& grid) {
                           return std::to_string(grid.param.size()) + "_sizes_up_to_" +
                                  std::to_string(grid.param.back());
                         });

}  // namespace
}  // namespace xpugraph
