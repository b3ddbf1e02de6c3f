// SPDX-License-Identifier: MIT
#include "core/shared_pool.h"

#include <utility>

#include "core/bytes.h"
#include "core/error.h"

namespace xpugraph {

SharedPool::SharedPool(std::shared_ptr<GraphRuntime> runtime, int device, std::size_t limit_bytes)
    : runtime_(std::move(runtime)), device_(device), limit_bytes_(limit_bytes) {
  if (!runtime_) throw ConfigError("a pool needs a runtime");
}

SharedPool::SharedPool(SharedPool&& other) noexcept
    : runtime_(std::move(other.runtime_)),
      device_(other.device_),
      limit_bytes_(other.limit_bytes_),
      id_(std::exchange(other.id_, 0)),
      growth_(std::exchange(other.growth_, {})) {}

SharedPool& SharedPool::operator=(SharedPool&& other) noexcept {
  if (this == &other) return *this;
  release();
  runtime_ = std::move(other.runtime_);
  device_ = other.device_;
  limit_bytes_ = other.limit_bytes_;
  id_ = std::exchange(other.id_, 0);
  growth_ = std::exchange(other.growth_, {});
  return *this;
}

PoolId SharedPool::acquire() {
  if (id_ == 0) id_ = runtime_->create_pool(device_);
  return id_;
}

void SharedPool::release() noexcept {
  growth_.clear();
  if (id_ != 0) runtime_->release_pool(std::exchange(id_, 0));
}

PoolStats SharedPool::stats() const { return id_ == 0 ? PoolStats{} : runtime_->pool_stats(id_); }

void SharedPool::note_growth(std::int64_t size, std::size_t bytes) {
  std::size_t& noted = growth_[size];
  noted = checked_add(noted, bytes);
}

std::size_t SharedPool::bytes_of(std::int64_t size) const {
  const auto found = growth_.find(size);
  return found == growth_.end() ? 0 : found->second;
}

}  // namespace xpugraph
