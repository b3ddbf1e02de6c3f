// SPDX-License-Identifier: MIT
/// @file CallBlocks: the transfers of replays that a graph carries out itself, for sycl_runtime.cpp.
/// Owns copies of the transfers until their replay has begun, not the memory. Threads: any thread puts, the worker takes.
#pragma once

#include <cstring>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/graph_runtime.h"

namespace xpugraph {

inline void carry_out(const std::vector<Transfer>& transfers) {
  for (const Transfer& piece : transfers) {
    if (piece.src == nullptr)
      std::memset(piece.dst, 0, piece.bytes);
    else
      std::memcpy(piece.dst, piece.src, piece.bytes);
  }
}

/// Transfers that a graph of one host_task carries out itself, before and after its work: what nodes with updated
/// pointers are on a GPU. One entry a replay, taken in the order of submission, which is the order in which replays of
/// one graph run.
class CallBlocks {
 public:
  void put(Transfers before, Transfers after) {
    std::lock_guard<std::mutex> lock(mutex_);
    blocks_.push_back({{before.data, before.data + before.count}, {after.data, after.data + after.count}});
  }
  /// Takes back the newest entry, when its replay could not be submitted.
  void unput() {
    std::lock_guard<std::mutex> lock(mutex_);
    blocks_.pop_back();
  }
  void before() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      current_ = std::move(blocks_.front());
      blocks_.pop_front();
    }
    carry_out(current_.before);
  }
  void after() { carry_out(current_.after); }

 private:
  struct Block {
    std::vector<Transfer> before, after;
  };
  std::mutex mutex_;
  std::deque<Block> blocks_;
  Block current_;  // of the worker
};

}  // namespace xpugraph
