// SPDX-License-Identifier: MIT
#include "fake_runtime.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace xpugraph::testing {
namespace {

std::string text_of(Stream stream) { return "s" + std::to_string(reinterpret_cast<std::uintptr_t>(stream.handle) - 1); }

}  // namespace

class FakeRuntime::FakeExecutable : public Executable {
 public:
  FakeExecutable(FakeRuntime& runtime, int number, PoolId pool_id, std::vector<std::function<void()>> work)
      : number_(number),
        pool_id_(pool_id),
        pool_(runtime.pools_.at(pool_id)),
        work_(std::move(work)),
        trace_(runtime.trace_),
        live_(runtime.live_executables_) {
    ++*live_;
    ++pool_->executables;
  }
  ~FakeExecutable() override {
    --*live_;
    --pool_->executables;
    trace_->push_back("destroy(" + text() + ")");
  }
  std::size_t nodes() const override { return work_.size(); }
  std::string text() const { return "g" + std::to_string(number_); }
  PoolId pool_id() const { return pool_id_; }
  void run() const {
    for (const auto& work : work_) work();
  }

 private:
  int number_;
  PoolId pool_id_;
  std::shared_ptr<Pool> pool_;
  std::vector<std::function<void()>> work_;
  std::shared_ptr<std::vector<std::string>> trace_;
  std::shared_ptr<int> live_;
};

// ---- the test's side ------------------------------------------------------------------------------------------------

Stream FakeRuntime::stream(int number) {
  return Stream{0, reinterpret_cast<void*>(static_cast<std::uintptr_t>(number) + 1)};
}

void FakeRuntime::fail_at(const std::string& name, int n) {
  failing_ = name;
  countdown_ = n;
}

void FakeRuntime::call(const std::string& name, const std::string& text) {
  trace_->push_back(name + "(" + text + ")");
  if (countdown_ > 0 && (failing_.empty() || failing_ == name) && --countdown_ == 0) {
    trace_->back() += " fails";
    throw Injected("injected failure of " + name);
  }
}

void FakeRuntime::submit(Stream stream, std::function<void()> work) {
  call("submit", text_of(stream));
  if (capture_ && stream == FakeRuntime::stream(kCaptureStream)) {
    capture_->work.push_back(std::move(work));
  } else {
    tick(stream);
    work();
  }
}

void FakeRuntime::allocate(std::size_t bytes) {
  call("allocate", std::to_string(bytes));
  if (!capture_) return;
  PoolStats& stats = pool(capture_->pool, "allocate").stats;
  stats.used += bytes;
  stats.peak_used = std::max(stats.peak_used, stats.used);
  stats.reserved = std::max(stats.reserved, stats.used);
}

std::optional<std::size_t> FakeRuntime::index_of(const std::string& call) const {
  const auto found = std::find(trace_->begin(), trace_->end(), call);
  if (found == trace_->end()) return std::nullopt;
  return static_cast<std::size_t>(found - trace_->begin());
}

int FakeRuntime::count_of(const std::string& name) const {
  return static_cast<int>(std::count_if(trace_->begin(), trace_->end(),
                                        [&](const std::string& call) { return call.rfind(name + "(", 0) == 0; }));
}

FakeRuntime::Pool& FakeRuntime::pool(PoolId id, const char* who) {
  const auto found = pools_.find(id);
  if (found == pools_.end()) throw std::logic_error(std::string(who) + " on a pool that does not exist");
  return *found->second;
}

// ---- streams --------------------------------------------------------------------------------------------------------

FakeRuntime::Point FakeRuntime::tick(Stream stream) { return {stream, ++clocks_[stream.handle][stream.handle]}; }

bool FakeRuntime::known(Stream stream, const Point& point) {
  return clocks_[stream.handle][point.stream.handle] >= point.time;
}

Stream FakeRuntime::current_stream(int device) {
  call("current_stream", std::to_string(device));
  return current_;
}

void FakeRuntime::order(Stream after, Stream before) {
  call("order", text_of(after) + "," + text_of(before));
  Clock& clock = clocks_[after.handle];
  for (const auto& [handle, time] : clocks_[before.handle]) clock[handle] = std::max(clock[handle], time);
}

void FakeRuntime::synchronize(Stream stream) { call("synchronize", text_of(stream)); }

void FakeRuntime::wait_idle(Stream stream) noexcept { call("wait_idle", text_of(stream)); }

// ---- memory ---------------------------------------------------------------------------------------------------------

PoolId FakeRuntime::create_pool(int device) {
  call("create_pool", std::to_string(device));
  pools_[next_pool_] = std::make_shared<Pool>();
  return next_pool_++;
}

void FakeRuntime::release_pool(PoolId id) noexcept {
  trace_->push_back("release_pool(" + std::to_string(id) + ")");
  const auto found = pools_.find(id);
  if (found == pools_.end()) return violation("release of a pool that does not exist");
  if (found->second->executables > 0) violation("release of a pool whose executables live");
  if (capture_ && capture_->pool == id) violation("release of a pool that is being captured into");
  pools_.erase(found);
}

PoolStats FakeRuntime::pool_stats(PoolId id) {
  call("pool_stats", std::to_string(id));
  return pool(id, "pool_stats").stats;
}

void FakeRuntime::transfer(Stream stream, const Transfer* transfers, std::size_t count) {
  call("transfer", text_of(stream) + "," + std::to_string(count));
  tick(stream);
  for (const Transfer* t = transfers; t != transfers + count; ++t) {
    if (t->bytes == 0) continue;
    if (t->src != nullptr) {
      std::memcpy(t->dst, t->src, t->bytes);
    } else {
      std::memset(t->dst, 0, t->bytes);
    }
  }
}

// ---- capture and replay ---------------------------------------------------------------------------------------------

Stream FakeRuntime::begin_capture(int device, PoolId id) {
  call("begin_capture", std::to_string(device) + "," + std::to_string(id));
  if (capture_) throw CaptureError("a capture is in progress on this thread");
  pool(id, "begin_capture").stats.used = 0;
  capture_ = Capture{current_, id, {}};
  current_ = stream(kCaptureStream);
  return current_;
}

std::unique_ptr<Executable> FakeRuntime::end_capture() {
  if (!capture_) throw CaptureError("no capture is in progress");
  Capture capture = std::move(*capture_);
  capture_.reset();
  current_ = capture.before;
  call("end_capture", "");
  if (capture.work.empty()) throw CaptureError("nothing was recorded");
  return std::make_unique<FakeExecutable>(*this, next_executable_++, capture.pool, std::move(capture.work));
}

void FakeRuntime::abort_capture() noexcept {
  trace_->push_back("abort_capture()");
  if (!capture_) return;
  current_ = capture_->before;
  capture_.reset();
}

void FakeRuntime::replay(Executable& executable, Stream stream) {
  auto& graph = dynamic_cast<FakeExecutable&>(executable);
  call("replay", graph.text() + "," + text_of(stream));
  Pool& used = pool(graph.pool_id(), "replay");
  if (used.last_use && !known(stream, *used.last_use)) {
    violation("replay of " + graph.text() + " on " + text_of(stream) + " races with the last one of its pool");
  }
  used.last_use = tick(stream);
  graph.run();
}

}  // namespace xpugraph::testing
