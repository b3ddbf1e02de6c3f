// SPDX-License-Identifier: MIT
/// @file FakeRuntime: a GraphRuntime without a device. Work is a closure that runs at once, or is recorded and runs at
/// every replay. It writes down every call, fails on demand at the n-th one, and notes each breach of the rules of
/// graph_runtime.h: a pool released under a live executable, replays of one pool that nothing orders, and so on.
/// Owns what it hands out. Throws what a real runtime throws. One thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/graph_runtime.h"

namespace xpugraph::testing {

/// The error of an injected failure, to tell it from the code's own.
struct Injected : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class FakeRuntime : public GraphRuntime {
 public:
  // ---- the test's side --------------------------------------------------------------------------------------------
  /// The stream named `number`; 0 is current at first, kCaptureStream is the device's capture stream.
  static Stream stream(int number);
  static constexpr int kCaptureStream = 99;

  /// Fails the n-th call (1 is the next) of `name`, or of any name that may fail when `name` is empty. Once.
  void fail_at(const std::string& name, int n);
  /// True while an armed failure has not happened yet.
  bool armed() const { return countdown_ > 0; }

  /// Runs `work` on `stream`, or records it when that is the stream being captured.
  void submit(Stream stream, std::function<void()> work);
  /// As an allocator would inside a capture: blocks that earlier captures took from the pool are used again.
  void allocate(std::size_t bytes);

  const std::vector<std::string>& trace() const { return *trace_; }
  void clear_trace() { trace_->clear(); }
  /// Position in the trace, or nothing.
  std::optional<std::size_t> index_of(const std::string& call) const;
  int count_of(const std::string& name) const;

  int live_executables() const { return *live_executables_; }
  int live_pools() const { return static_cast<int>(pools_.size()); }
  bool capturing() const { return capture_.has_value(); }
  Stream current() const { return current_; }
  void set_current(Stream stream) { current_ = stream; }
  /// Rules that were broken; a test that passes has none.
  const std::vector<std::string>& violations() const { return *violations_; }

  // ---- GraphRuntime -----------------------------------------------------------------------------------------------
  std::string name() const override { return "fake"; }
  Stream current_stream(int device) override;
  void order(Stream after, Stream before) override;
  void synchronize(Stream stream) override;
  void wait_idle(Stream stream) noexcept override;
  PoolId create_pool(int device) override;
  void release_pool(PoolId pool) noexcept override;
  PoolStats pool_stats(PoolId pool) override;
  void transfer(Stream stream, const Transfer* transfers, std::size_t count) override;
  Stream begin_capture(int device, PoolId pool) override;
  std::unique_ptr<Executable> end_capture() override;
  void abort_capture() noexcept override;
  void replay(Executable& executable, Stream stream) override;

 private:
  using Clock = std::map<void*, int>;  // how much of each stream's work is known to be done before
  struct Point {
    Stream stream;
    int time = 0;
  };
  struct Pool {
    PoolStats stats;
    int executables = 0;
    std::optional<Point> last_use;
  };
  struct Capture {
    Stream before;
    PoolId pool = 0;
    std::vector<std::function<void()>> work;
  };
  class FakeExecutable;

  /// Writes the call down and fails if its turn has come.
  void call(const std::string& name, const std::string& text);
  void violation(const std::string& text) { violations_->push_back(text); }
  Pool& pool(PoolId id, const char* who);
  /// One more piece of work on `stream`.
  Point tick(Stream stream);
  bool known(Stream stream, const Point& point);

  std::shared_ptr<std::vector<std::string>> trace_ = std::make_shared<std::vector<std::string>>();
  std::shared_ptr<std::vector<std::string>> violations_ = std::make_shared<std::vector<std::string>>();
  std::shared_ptr<int> live_executables_ = std::make_shared<int>(0);
  std::map<PoolId, std::shared_ptr<Pool>> pools_;
  std::map<void*, Clock> clocks_;
  std::optional<Capture> capture_;
  Stream current_ = stream(0);
  PoolId next_pool_ = 1;
  int next_executable_ = 1;
  std::string failing_;
  int countdown_ = 0;
};

}  // namespace xpugraph::testing
