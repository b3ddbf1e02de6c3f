// SPDX-License-Identifier: MIT
#include "core/batch_plan.h"

#include <cmath>
#include <limits>
#include <string>

#include "core/error.h"

namespace xpugraph {

PlanTable PlanTable::padded(const BatchGrid& grid) {
  PlanTable table;
  table.beyond_ = grid.largest();
  table.next_.resize(static_cast<std::size_t>(grid.largest()) + 1);
  for (std::int64_t rows = 1; rows <= grid.largest(); ++rows)
    table.next_[static_cast<std::size_t>(rows)] = static_cast<std::int32_t>(grid.ceil(rows));
  return table;
}

PlanTable PlanTable::cheapest(const BatchGrid& grid, const std::vector<double>& costs, Gains gains) {
  const std::vector<std::int64_t>& sizes = grid.sizes();
  if (costs.size() != sizes.size() || sizes.empty())
    throw ConfigError(std::to_string(costs.size()) + " costs for " + std::to_string(sizes.size()) +
                      " batch sizes; each needs one");
  for (const double cost : costs)
    if (!(cost > 0) || !std::isfinite(cost)) throw ConfigError("a cost is " + std::to_string(cost));
  for (const double gain : {gains.min, gains.exact})
    if (!(gain >= 0 && gain < 1)) throw ConfigError("a gain is " + std::to_string(gain) + ", it must be in [0, 1)");

  const std::int64_t largest = grid.largest();
  const auto count = static_cast<std::size_t>(2 * largest) + 1;
  PlanTable table;
  table.next_.resize(count);
  // What a number of rows costs by the plain rule, and by the table.
  std::vector<double> plain(count, 0.0), ours(count, 0.0);
  std::vector<double> cost_of(static_cast<std::size_t>(largest) + 1, 0.0);
  for (std::size_t i = 0; i < sizes.size(); ++i) cost_of[static_cast<std::size_t>(sizes[i])] = costs[i];
  for (std::size_t rows = 1; rows < count; ++rows) {
    const auto left = static_cast<std::int64_t>(rows);
    const std::int64_t rule = left <= largest ? grid.ceil(left) : largest;
    const double rule_cost = cost_of[static_cast<std::size_t>(rule)];
    const std::size_t rest = left > rule ? rows - static_cast<std::size_t>(rule) : 0;
    plain[rows] = rule_cost + plain[rest];
    double least = std::numeric_limits<double>::infinity();
    std::int64_t chosen = rule;
    for (std::size_t i = sizes.size(); i-- > 0;) {  // of equally cheap covers the one with the largest first chunk
      const double cost = costs[i] + (left > sizes[i] ? ours[rows - static_cast<std::size_t>(sizes[i])] : 0.0);
      if (cost < least) least = cost, chosen = sizes[i];
    }
    if (plain[rows] * (1 - (left == rule ? gains.exact : gains.min)) <= least) {
      chosen = rule;
      least = rule_cost + ours[rest];
    }
    ours[rows] = least;
    table.next_[rows] = static_cast<std::int32_t>(chosen);
  }
  std::size_t densest = sizes.size() - 1;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    if (costs[i] / sizes[i] < (1 - gains.min) * costs[densest] / sizes[densest]) densest = i;
  table.beyond_ = sizes[densest];
  return table;
}

BatchPlan::BatchPlan(const PlanTable& table, std::int64_t batch) : table_(&table), batch_(batch) {
  if (batch < 0) throw InputError("a batch of " + std::to_string(batch) + " rows");
  if (batch > 0 && table.empty()) {
    throw InputError("cannot serve a batch of " + std::to_string(batch) + " rows: no batch size is recorded");
  }
}

}  // namespace xpugraph
