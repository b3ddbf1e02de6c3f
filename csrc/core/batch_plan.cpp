// SPDX-License-Identifier: MIT
#include "core/batch_plan.h"

#include <string>

#include "core/error.h"

namespace xpugraph {

BatchPlan::BatchPlan(const BatchGrid& grid, std::int64_t batch) : grid_(&grid), batch_(batch) {
  if (batch < 0) throw InputError("a batch of " + std::to_string(batch) + " rows");
  if (batch > 0 && grid.empty()) throw InputError("no batch size is recorded");
}

}  // namespace xpugraph
