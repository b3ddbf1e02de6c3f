// SPDX-License-Identifier: MIT
/// @file GraphedModule: one module recorded for every size of a grid, and the path of a call: plan, pad, replay, slice.
/// Owns the graphs with their pool and the padded input buffers. Holds no Python object.
/// Throws ConfigError, StateError, CaptureError, OutOfMemoryError (record), InputError (run); a throw leaves what was
/// recorded before usable. Work that fails on the device is raised by whoever synchronises.
/// Threads: any thread may call anything, on any stream; one lock a call. Call without the GIL: forwards take it again.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "core/batch_grid.h"
#include "core/batch_plan.h"
#include "core/graph_set.h"
#include "runtime/graph_runtime.h"
#include "torch/rows.h"
#include "torch/tensor_spec.h"

namespace xpugraph {

struct GraphedModuleOptions {
  bool copy_outputs = true;          ///< false: a result of one replay is lent until the next call
  std::size_t pool_limit_bytes = 0;  ///< 0: none
};

class GraphedModule {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Forward = std::function<Tensors(const Tensors& inputs)>;

  /// Allocates one buffer a tensor argument, as large as the grid's largest size.
  GraphedModule(std::shared_ptr<GraphRuntime> runtime, at::Device device, const BatchGrid& grid,
                const std::vector<TensorSpec>& inputs, std::vector<TensorSpec> outputs, GraphedModuleOptions options);
  /// Waits for the last replay, which reads the buffers. Lent results live on, with the graphs' pool.
  ~GraphedModule();

  /// The arguments that the graph of `size` reads: dense views, in the sample's memory format, of a prefix of each buffer.
  /// Ask again before writing to them when run() came in between.
  Tensors static_inputs(std::int64_t size);
  /// Captures forward(static_inputs(size)) into the shared pool. Let `forward` run for this size before, so that nothing
  /// is initialised inside the capture. @throws what forward throws; CaptureError; OutOfMemoryError (pool limit).
  /// Without `publish` no call is served by it before publish(size): run() uses it only where it is told to.
  void record(std::int64_t size, const Forward& forward, bool publish = true);
  /// Lets calls be served by a size that was recorded without that. @throws StateError when it is not recorded.
  void publish(std::int64_t size);
  /// Forgets a recorded size; others serve its batches from then on.
  void drop(std::int64_t size);
  /// From now on batches are served by the cheapest cover of the recorded sizes that have a cost (PlanTable::cheapest)
  /// instead of the plain rule; a recorded size without one serves batches of exactly its size. Costs of sizes that are not
  /// recorded say nothing; without a cost of the largest size the plain rule is back.
  /// @throws ConfigError for a cost or gain that cannot be; changes nothing.
  void set_costs(std::map<std::int64_t, double> costs, PlanTable::Gains gains);
  /// What serves `batch_size` items. @throws InputError when it is negative, or nothing is recorded.
  std::vector<Chunk> plan(std::int64_t batch_size) const;

  /// Serves `batch_size` ≥ 1 items; `inputs` match the specs. Asynchronous on the calling thread's current stream. Rows
  /// that pad are zero. Results are the caller's own, or lent (copy_outputs = false and one replay).
  Tensors run(const Tensors& inputs, std::int64_t batch_size);
  /// The same for a check or a measurement, which is not counted; with `size` above 0 by replays of that size alone,
  /// published or not.
  Tensors trial(const Tensors& inputs, std::int64_t batch_size, std::int64_t size);
  /// Replays one size on the current stream with whatever its buffers hold.
  void replay(std::int64_t size);

  std::vector<std::int64_t> sizes() const;     ///< what is recorded and published, ascending
  std::size_t nodes(std::int64_t size) const;  ///< of one graph; never 0
  PoolStats pool_stats() const;
  std::size_t pool_bytes_of(std::int64_t size) const;  ///< what recording this size added to the pool
  bool writes_inputs() const { return writes_inputs_; }
  std::size_t input_bytes() const;  ///< of the padded input buffers
  std::int64_t recordings() const;  ///< captures that succeeded, ever
  std::int64_t replays() const;     ///< graphs replayed by run(), where counted

 private:
  using Results = std::vector<Result>;

  Tensors views(std::int64_t size) const;
  Tensors serve(const Tensors& inputs, const BatchPlan& plan, std::int64_t& replays);
  Results hold(Tensors&& outputs, std::int64_t size) const;
  void add_to_grid(std::int64_t size);
  void replan();
  int device_index() const { return device_.index() < 0 ? 0 : device_.index(); }

  std::shared_ptr<GraphRuntime> runtime_;
  at::Device device_;
  GraphedModuleOptions options_;
  std::vector<TensorSpec> output_specs_;
  std::int64_t capacity_;  ///< items that the padded buffers hold
  std::vector<Slot> slots_;
  bool writes_inputs_ = false;
  BatchGrid grid_;  ///< what is recorded
  PlanTable plan_;  ///< of the grid and the costs
  std::map<std::int64_t, double> costs_;
  PlanTable::Gains gains_;
  std::shared_ptr<GraphSet> graphs_;  ///< shared with lent results, whose memory is in its pool
  std::vector<Results> results_;      ///< by batch size
  std::vector<Transfer> before_;      ///< scratch of a call: into the slots
  std::vector<Transfer> after_;       ///< scratch of a call: out of the results
  std::int64_t recordings_ = 0;
  std::int64_t replays_ = 0;
  mutable std::mutex mutex_;
};

}  // namespace xpugraph
