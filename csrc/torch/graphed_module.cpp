// SPDX-License-Identifier: MIT
#include "torch/graphed_module.h"

#include <ATen/core/grad_mode.h>

#include <unordered_map>

#include "core/error.h"

namespace xpugraph {
namespace {

std::string describe_tensor(at::ScalarType dtype, at::IntArrayRef sizes, at::Device device) {
  return std::string(c10::toString(dtype)) + list_of(sizes) + " on " + device.str();
}

}  // namespace

GraphedModule::GraphedModule(std::shared_ptr<GraphRuntime> runtime, at::Device device, const BatchGrid& grid,
                             const std::vector<TensorSpec>& inputs, std::vector<TensorSpec> outputs,
                             GraphedModuleOptions options)
    : runtime_(std::move(runtime)),
      device_(device),
      options_(options),
      output_specs_(std::move(outputs)),
      capacity_(grid.largest()) {
  if (grid.empty()) throw ConfigError("batch_sizes: at least one batch size is needed");
  const at::NoGradGuard no_grad;
  for (const TensorSpec& spec : inputs) {
    slots_.emplace_back(spec, device_, grid.largest());
    writes_inputs_ |= spec.written;
  }
  graphs_ = std::make_shared<GraphSet>(runtime_, device_index(), options_.pool_limit_bytes);
}

GraphedModule::~GraphedModule() { graphs_->wait_idle(); }

GraphedModule::Tensors GraphedModule::static_inputs(std::int64_t size) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Slot& slot : slots_) slot.touch(size);
  return views(size);
}

GraphedModule::Tensors GraphedModule::views(std::int64_t size) const {
  Tensors views;
  for (const Slot& slot : slots_) views.push_back(slot.view(size));
  return views;
}

void GraphedModule::record(std::int64_t size, const Forward& forward, bool publish) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Tensors inputs = views(size);
  Tensors outputs;
  graphs_->record(size, [&] { outputs = forward(inputs); });
  const auto index = static_cast<std::size_t>(size);  // of a size that was accepted
  try {
    if (results_.size() <= index) results_.resize(index + 1);
    results_[index] = hold(std::move(outputs), size);
    if (publish) add_to_grid(size);
  } catch (...) {
    graphs_->drop(size);
    if (results_.size() > index) results_[index].clear();
    grid_ = grid_.without(size);
    throw;
  }
  ++recordings_;
}

void GraphedModule::publish(std::int64_t size) {
  const std::lock_guard<std::mutex> lock(mutex_);
  graphs_->nodes(size);  // throws where there is none
  add_to_grid(size);
}

void GraphedModule::add_to_grid(std::int64_t size) {
  std::vector<std::int64_t> sizes = grid_.sizes();
  sizes.push_back(size);
  grid_ = BatchGrid::from_sizes(std::move(sizes));
  replan();
}

GraphedModule::Results GraphedModule::hold(Tensors&& outputs, std::int64_t size) const {
  if (outputs.size() != output_specs_.size())
    throw CaptureError("batch size " + std::to_string(size) + ": forward returned " + std::to_string(outputs.size()) +
                       " tensors, and " + std::to_string(output_specs_.size()) + " in the first run");
  // Without autograd's view information, which would keep the tensor that an output is a view of.
  std::unordered_map<const c10::StorageImpl*, std::size_t> ours;
  for (at::Tensor& output : outputs) {
    output = output.variable_data();
    ++ours[output.storage().unsafeGetStorageImpl()];
  }
  Results held;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const TensorSpec& spec = output_specs_[i];
    const at::Tensor& output = outputs[i];
    if (output.device() != device_ || output.scalar_type() != spec.dtype || output.sizes() != spec.shape_for(size)) {
      throw CaptureError("batch size " + std::to_string(size) + ": " + spec.name + " is " +
                         describe_tensor(output.scalar_type(), output.sizes(), output.device()) + ", expected " +
                         describe_tensor(spec.dtype, spec.shape_for(size), device_));
    }
    // Memory that somebody else holds (a parameter, an argument, a cache) is not the pool's to give to the next capture.
    const bool held_elsewhere = output.storage().use_count() > ours[output.storage().unsafeGetStorageImpl()];
    held.emplace_back(spec, output, held_elsewhere, graphs_);
  }
  return held;
}

void GraphedModule::drop(std::int64_t size) {
  const std::lock_guard<std::mutex> lock(mutex_);
  graphs_->drop(size);
  results_[static_cast<std::size_t>(size)].clear();
  grid_ = grid_.without(size);
  replan();
}

void GraphedModule::set_costs(std::map<std::int64_t, double> costs, PlanTable::Gains gains) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::swap(costs_, costs);
  std::swap(gains_, gains);
  try {
    replan();
  } catch (...) {
    std::swap(costs_, costs);
    std::swap(gains_, gains);
    throw;
  }
}

void GraphedModule::replan() {
  std::vector<std::int64_t> timed, others;
  std::vector<double> costs;
  for (const std::int64_t size : grid_.sizes()) {
    const auto known = costs_.find(size);
    (known == costs_.end() ? others : timed).push_back(size);
    if (known != costs_.end()) costs.push_back(known->second);
  }
  if (timed.empty() || timed.back() != grid_.largest()) {
    plan_ = PlanTable::padded(grid_);
    return;
  }
  plan_ = PlanTable::cheapest(BatchGrid::from_sizes(std::move(timed)), costs, gains_);
  for (const std::int64_t size : others) plan_.serve_exactly(size);
}

std::vector<Chunk> GraphedModule::plan(std::int64_t batch_size) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const BatchPlan plan(plan_, batch_size);
  return {plan.begin(), plan.end()};
}

GraphedModule::Tensors GraphedModule::run(const Tensors& inputs, std::int64_t batch_size) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (grid_.empty()) throw StateError("no batch size is recorded");
  return serve(inputs, BatchPlan(plan_, batch_size), replays_);
}

GraphedModule::Tensors GraphedModule::trial(const Tensors& inputs, std::int64_t batch_size, std::int64_t size) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::int64_t not_counted = 0;
  if (size == 0) return serve(inputs, BatchPlan(plan_, batch_size), not_counted);
  const PlanTable alone = PlanTable::padded(BatchGrid::from_sizes({size}));
  return serve(inputs, BatchPlan(alone, batch_size), not_counted);
}

GraphedModule::Tensors GraphedModule::serve(const Tensors& inputs, const BatchPlan& plan, std::int64_t& replays) {
  const at::NoGradGuard no_grad;
  const std::int64_t batch_size = plan.batch();
  const Stream stream = runtime_->current_stream(device_index());
  const c10::DeviceGuard device(device_);
  graphs_->enter(stream);
  const bool lend = !options_.copy_outputs && plan.single();
  Tensors outputs;
  outputs.reserve(output_specs_.size());
  try {
    for (const Chunk chunk : plan) {
      const Results& results = results_[static_cast<std::size_t>(chunk.size)];
      before_.clear();
      after_.clear();
      for (std::size_t i = 0; i < slots_.size(); ++i) slots_[i].fill(inputs[i], chunk, before_);
      if (chunk.offset == 0)
        for (const Result& result : results)
          outputs.push_back(lend ? result.lend(chunk.rows) : result.allocate(batch_size));
      if (!lend)
        for (std::size_t i = 0; i < results.size(); ++i) results[i].transfer_to(outputs[i], chunk, after_);
      graphs_->replay(chunk.size, stream, {before_.data(), before_.size()}, {after_.data(), after_.size()});
      ++replays;
      if (writes_inputs_)
        for (std::size_t i = 0; i < slots_.size(); ++i)
          if (slots_[i].spec().written) slots_[i].write_back(inputs[i], chunk);
      if (!lend)
        for (std::size_t i = 0; i < results.size(); ++i) results[i].copy_to(outputs[i], chunk);
    }
  } catch (...) {
    for (Slot& slot : slots_) slot.touch(capacity_);  // who knows which transfers were made
    throw;
  }
  return outputs;
}

void GraphedModule::replay(std::int64_t size) {
  const std::lock_guard<std::mutex> lock(mutex_);
  graphs_->replay(size, runtime_->current_stream(device_index()));
  if (writes_inputs_)
    for (Slot& slot : slots_) slot.touch(size);
}

std::vector<std::int64_t> GraphedModule::sizes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return grid_.sizes();
}

std::size_t GraphedModule::nodes(std::int64_t size) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return graphs_->nodes(size);
}

PoolStats GraphedModule::pool_stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return graphs_->pool().stats();
}

std::size_t GraphedModule::pool_bytes_of(std::int64_t size) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return graphs_->pool().bytes_of(size);
}

std::size_t GraphedModule::input_bytes() const {
  std::size_t bytes = 0;
  for (const Slot& slot : slots_) bytes += slot.bytes();
  return bytes;
}

std::int64_t GraphedModule::recordings() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return recordings_;
}

std::int64_t GraphedModule::replays() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return replays_;
}

}  // namespace xpugraph
