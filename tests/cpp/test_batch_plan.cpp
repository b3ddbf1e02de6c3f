// SPDX-License-Identifier: MIT
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <random>
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
  const PlanTable table = PlanTable::padded(grid);
  const BatchPlan plan(table, batch);
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
  const PlanTable table = PlanTable::padded(BatchGrid::regular(8, 8));
  expect_error<InputError>([&] { BatchPlan(table, -1); }, "-1 rows");
  const PlanTable empty;
  expect_error<InputError>([&] { BatchPlan(empty, 1); }, "no batch size is recorded");
}

class BatchPlanOverGrids : public ::testing::TestWithParam<std::vector<std::int64_t>> {};

// Every batch: the chunks tile it without gap or overlap, no smaller recorded size would do for any of them, and all
// but the last are full chunks of the largest size.
TEST_P(BatchPlanOverGrids, TilesEveryBatchWithTheSmallestSizes) {
  const BatchGrid grid = BatchGrid::from_sizes(GetParam());
  const auto& sizes = grid.sizes();
  const PlanTable table = PlanTable::padded(grid);
  for (std::int64_t batch = 1; batch <= 1100; ++batch) {
    const BatchPlan plan(table, batch);
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
    ASSERT_EQ(count == 1, plan.single()) << batch;
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

// ---- plans by measured cost -------------------------------------------------------------------------------------------

using Costs = std::vector<double>;

double cost_of(const PlanTable& table, const BatchGrid& grid, const Costs& costs, std::int64_t batch) {
  double cost = 0;
  for (const Chunk chunk : BatchPlan(table, batch)) {
    const auto at = std::lower_bound(grid.sizes().begin(), grid.sizes().end(), chunk.size);
    cost += costs[static_cast<std::size_t>(at - grid.sizes().begin())];
  }
  return cost;
}

std::vector<std::int64_t> sizes_of(const PlanTable& table, std::int64_t batch) {
  std::vector<std::int64_t> sizes;
  for (const Chunk chunk : BatchPlan(table, batch)) sizes.push_back(chunk.size);
  return sizes;
}

TEST(CheapestPlan, SplitsWhereThatIsCheaperThanPadding) {
  const BatchGrid grid = BatchGrid::from_sizes({1, 8, 16, 24});
  const PlanTable by_rows = PlanTable::cheapest(grid, {1.5, 8, 16, 24}, {0.05, 0.2});
  EXPECT_THAT(sizes_of(by_rows, 17), ElementsAre(16, 1));
  EXPECT_THAT(sizes_of(by_rows, 18), ElementsAre(16, 1, 1));
  EXPECT_THAT(sizes_of(by_rows, 23), ElementsAre(24)) << "7 x 1.5 more than the whole size costs";
  EXPECT_THAT(sizes_of(by_rows, 24), ElementsAre(24));
  // A model whose time is in its launches: every size costs the same, so nothing is ever split.
  const PlanTable flat = PlanTable::cheapest(grid, {5, 5, 5, 5}, {0.05, 0.2});
  for (std::int64_t batch = 1; batch <= 24; ++batch) EXPECT_THAT(sizes_of(flat, batch), ElementsAre(grid.ceil(batch)));
}

TEST(CheapestPlan, PadsFurtherWhereALargerSizeIsFaster) {
  const BatchGrid grid = BatchGrid::from_sizes({8, 16});
  EXPECT_THAT(sizes_of(PlanTable::cheapest(grid, {10, 4}, {0.05, 0.2}), 3), ElementsAre(16));
}

TEST(CheapestPlan, StaysWithThePlainRuleForASmallGain) {
  const BatchGrid grid = BatchGrid::from_sizes({1, 16, 24});
  EXPECT_THAT(sizes_of(PlanTable::cheapest(grid, {2, 21.5, 24}, {0.05, 0.2}), 17), ElementsAre(24));
  EXPECT_THAT(sizes_of(PlanTable::cheapest(grid, {2, 21.5, 24}, {0.0, 0.2}), 17), ElementsAre(16, 1));
}

TEST(CheapestPlan, AboveTheLargestSize) {
  const BatchGrid grid = BatchGrid::from_sizes({1, 32, 64});
  // 64 rows cost more than twice 32: chunks of 32 all the way.
  const PlanTable table = PlanTable::cheapest(grid, {1, 10, 30}, {0.05, 0.2});
  EXPECT_THAT(sizes_of(table, 65), ElementsAre(32, 32, 1));
  EXPECT_THAT(sizes_of(table, 300), ElementsAre(32, 32, 32, 32, 32, 32, 32, 32, 32, 32));
  const PlanTable plain = PlanTable::cheapest(grid, {5, 10, 19}, {0.05, 0.2});
  EXPECT_THAT(sizes_of(plain, 200), ElementsAre(64, 64, 64, 32));
}

TEST(CheapestPlan, ARecordedSizeServesItsOwnBatchesUnlessItIsFarSlower) {
  const BatchGrid grid = BatchGrid::from_sizes({4, 8, 16});
  EXPECT_THAT(sizes_of(PlanTable::cheapest(grid, {5, 10, 9}, {0.05, 0.2}), 8), ElementsAre(8)) << "16 gains a tenth";
  EXPECT_THAT(sizes_of(PlanTable::cheapest(grid, {5, 10, 9}, {0.05, 0.2}), 7), ElementsAre(16)) << "as it may here";
  EXPECT_THAT(sizes_of(PlanTable::cheapest(grid, {5, 10, 7}, {0.05, 0.2}), 8), ElementsAre(16));
}

TEST(CheapestPlan, ServesASizeExactly) {
  const BatchGrid grid = BatchGrid::from_sizes({16, 24});
  PlanTable table = PlanTable::cheapest(grid, {16, 24}, {0.05, 0.2});
  table.serve_exactly(17);
  EXPECT_THAT(sizes_of(table, 17), ElementsAre(17));
  EXPECT_THAT(sizes_of(table, 18), ElementsAre(24));
}

TEST(CheapestPlan, RefusesCostsThatCannotBe) {
  const BatchGrid grid = BatchGrid::from_sizes({1, 2});
  expect_error<ConfigError>([&] { PlanTable::cheapest(grid, {1}, {0.05, 0.2}); }, "1 costs for 2");
  expect_error<ConfigError>([&] { PlanTable::cheapest(grid, {1, 0}, {0.05, 0.2}); }, "cost");
  expect_error<ConfigError>([&] { PlanTable::cheapest(grid, {1, -1}, {0.05, 0.2}); }, "cost");
  expect_error<ConfigError>([&] { PlanTable::cheapest(grid, {1, std::nan("")}, {0.05, 0.2}); }, "cost");
  expect_error<ConfigError>([&] { PlanTable::cheapest(grid, {1, HUGE_VAL}, {0.05, 0.2}); }, "cost");
  expect_error<ConfigError>([&] { PlanTable::cheapest(grid, {1, 2}, {1.0, 0.2}); }, "gain");
}

// Against every cover there is, by brute force over the number of rows left; and never above the plain rule.
TEST(CheapestPlan, IsTheCheapestOfAllCovers) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::int64_t> sizes;
    for (int i = 0; i < 5; ++i) sizes.push_back(1 + static_cast<std::int64_t>(random() % 24));
    const BatchGrid grid = BatchGrid::from_sizes(sizes);
    Costs costs;
    for (std::size_t i = 0; i < grid.sizes().size(); ++i) costs.push_back(1.0 + static_cast<double>(random() % 1000));
    const double min_gain = round % 2 == 0 ? 0.0 : 0.05;
    const PlanTable table = PlanTable::cheapest(grid, costs, {min_gain, 4 * min_gain}), plain = PlanTable::padded(grid);
    std::function<double(std::int64_t)> best = [&](std::int64_t rows) {
      if (rows <= 0) return 0.0;
      static std::map<std::int64_t, double> known;
      if (rows == 1) known.clear();
      double least = HUGE_VAL;
      for (std::size_t i = 0; i < costs.size(); ++i) {
        const std::int64_t rest = rows - grid.sizes()[i];
        least = std::min(least, costs[i] + (rest > 0 ? known.at(rest) : 0.0));
      }
      return known[rows] = least;
    };
    for (std::int64_t batch = 1; batch <= 4 * grid.largest(); ++batch) {
      const double least = best(batch), ours = cost_of(table, grid, costs, batch);
      const double rule = cost_of(plain, grid, costs, batch);
      if (batch <= 2 * grid.largest()) {
        if (min_gain == 0.0) {
          ASSERT_NEAR(ours, least, 1e-9) << "batch " << batch;
        }
        ASSERT_LE(ours, rule + 1e-9) << "batch " << batch;
      }
      std::int64_t covered = 0;
      for (const Chunk chunk : BatchPlan(table, batch)) {
        ASSERT_EQ(chunk.offset, covered);
        ASSERT_TRUE(grid.contains(chunk.size));
        covered += chunk.rows;
      }
      ASSERT_EQ(covered, batch);
    }
  }
}

}  // namespace
}  // namespace xpugraph
