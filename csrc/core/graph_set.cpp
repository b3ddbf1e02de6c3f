// SPDX-License-Identifier: MIT
#include "core/graph_set.h"

#include <string>
#include <utility>

#include "core/batch_grid.h"
#include "core/error.h"

namespace xpugraph {
namespace {

/// Sets a flag for the duration of a scope.
class Raised {
 public:
  explicit Raised(bool& flag) : flag_(flag) { flag_ = true; }
  ~Raised() { flag_ = false; }
  Raised(const Raised&) = delete;
  Raised& operator=(const Raised&) = delete;

 private:
  bool& flag_;
};

std::string of_size(std::int64_t size) { return "batch size " + std::to_string(size); }

}  // namespace

GraphSet::GraphSet(std::shared_ptr<GraphRuntime> runtime, int device, std::size_t pool_limit_bytes)
    : runtime_(std::move(runtime)), device_(device), pool_(runtime_, device, pool_limit_bytes) {}

GraphSet::~GraphSet() { clear(); }

void GraphSet::record(std::int64_t size, const std::function<void()>& body) {
  if (recording_) throw CaptureError("cannot record " + of_size(size) + " while another recording is in progress");
  if (size < 1 || size > BatchGrid::kMaxBatchSize) throw ConfigError("cannot record " + of_size(size));
  if (contains(size)) throw StateError(of_size(size) + " is recorded already");
  // All that may fail for want of host memory comes first, so that registering cannot fail.
  if (graphs_.size() <= static_cast<std::size_t>(size)) graphs_.resize(static_cast<std::size_t>(size) + 1);
  try {
    pool_.acquire();
    const std::size_t before = pool_.stats().reserved;
    std::unique_ptr<Executable> graph = capture(body);
    const std::size_t after = pool_.stats().reserved;
    const std::size_t growth = after > before ? after - before : 0;
    enforce_limit(size, after, growth);
    pool_.note_growth(size, growth);
    graphs_[static_cast<std::size_t>(size)] = std::move(graph);
    ++count_;
  } catch (...) {
    release_unused_pool();
    throw;
  }
}

std::unique_ptr<Executable> GraphSet::capture(const std::function<void()>& body) {
  Raised raised(recording_);
  for (;;) {
    // When beginning fails there is nothing of ours to abort: a capture in progress on this thread is another set's.
    runtime_->begin_capture(device_, pool_.id());
    try {
      body();
      return runtime_->end_capture();
    } catch (...) {
      runtime_->abort_capture();
      if (!runtime_->repeat_capture()) throw;
    }
  }
}

void GraphSet::enforce_limit(std::int64_t size, std::size_t reserved, std::size_t growth) const {
  // A graph that fits into what is reserved already is no reason to complain, even if an earlier one was.
  const std::size_t limit = pool_.limit_bytes();
  if (limit == 0 || reserved <= limit || growth == 0) return;
  throw OutOfMemoryError("recording " + of_size(size) + " makes the pool " + std::to_string(reserved) +
                         " bytes, its limit is " + std::to_string(limit) + " bytes");
}

void GraphSet::drop(std::int64_t size) {
  if (recording_) throw StateError("cannot drop " + of_size(size) + " while a recording is in progress");
  at(size);
  wait_idle();  // not every runtime keeps a graph alive that is destroyed while it runs
  graphs_[static_cast<std::size_t>(size)].reset();
  --count_;
  release_unused_pool();
}

void GraphSet::clear() noexcept {
  if (recording_) return;
  wait_idle();
  graphs_.clear();
  count_ = 0;
  last_.reset();
  pool_.release();
}

void GraphSet::enter(Stream stream) {
  if (recording_) throw CaptureError("cannot replay while a recording is in progress");
  if (last_ == stream) return;
  if (last_) runtime_->order(stream, *last_);
  last_ = stream;
}

void GraphSet::replay(std::int64_t size, Stream stream) {
  Executable& graph = at(size);
  enter(stream);
  runtime_->replay(graph, stream);
}

void GraphSet::replay(std::int64_t size, Stream stream, Transfers before, Transfers after) {
  Executable& graph = at(size);
  enter(stream);
  runtime_->replay(graph, stream, before, after);
}

std::vector<std::int64_t> GraphSet::sizes() const {
  std::vector<std::int64_t> sizes;
  sizes.reserve(count_);
  for (std::size_t size = 0; size < graphs_.size(); ++size) {
    if (graphs_[size]) sizes.push_back(static_cast<std::int64_t>(size));
  }
  return sizes;
}

std::size_t GraphSet::nodes(std::int64_t size) const { return at(size).nodes(); }

Executable& GraphSet::at(std::int64_t size) const {
  Executable* graph = find(size);
  if (graph == nullptr) throw StateError(of_size(size) + " is not recorded");
  return *graph;
}

void GraphSet::wait_idle() noexcept {
  if (last_) runtime_->wait_idle(*last_);
}

void GraphSet::release_unused_pool() noexcept {
  if (count_ == 0) pool_.release();
}

}  // namespace xpugraph
