// SPDX-License-Identifier: MIT
/// @file GraphedCall: what Python calls. Matches the arguments, runs the graphs without the GIL, builds the result.
/// Owns the GraphedModule and everything of Python's that belongs to it: signature, result structure, watch.
/// Throws StateError when the module was changed after recording, and what GraphedModule throws. A call that was not
/// recorded is handed to `reject` with the reason. Threads: needs the GIL, which it releases around the device's work.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>
#include <vector>

#include "torch/call_signature.h"
#include "torch/graphed_module.h"
#include "torch/module_watch.h"

namespace xpugraph {

class GraphedCall {
 public:
  /// @param reject  Python callable (reason, args, kwargs) -> result, for calls the graphs cannot serve
  GraphedCall(std::unique_ptr<GraphedModule> module, CallSignature signature, Node result, py::object unflatten_node,
              py::object reject);

  /// Without the GIL, since it waits for the device.
  ~GraphedCall();
  GraphedCall(const GraphedCall&) = delete;
  GraphedCall& operator=(const GraphedCall&) = delete;

  py::object operator()(const py::args& args, const py::kwargs& kwargs);
  /// The same for a check or a measurement (see GraphedModule::trial): counted nowhere, and not handed to `reject`.
  /// @throws InputError instead.
  py::object trial(const py::args& args, const py::kwargs& kwargs, std::int64_t size);
  /// @throws StateError when the module is no longer what was recorded; names the change.
  void need_unchanged();

  /// forward(list of static inputs) -> list of tensors, called inside the capture with the GIL held.
  void record(std::int64_t size, const py::function& forward, bool publish);
  void replay(std::int64_t size);
  /// From now on calls check `watch`.
  void serve(ModuleWatch watch);

  /// From now on the call that serves a batch size of 1..largest for the `times`-th time tells `on_seen(batch_size)`, after
  /// its work was submitted; `on_seen` must not raise.
  void report_seen(std::int64_t times, std::int64_t largest, py::object on_seen);

  GraphedModule& module() { return *module_; }
  std::int64_t calls() const { return calls_; }

 private:
  bool same_autocast() const;
  std::optional<std::string> match(const py::args& args, const py::kwargs& kwargs, CallSignature::Match& match) const;
  void count(std::int64_t batch_size);

  std::unique_ptr<GraphedModule> module_;
  CallSignature signature_;
  Node result_;
  py::object unflatten_node_;
  py::object reject_;
  ModuleWatch watch_;
  at::DeviceType device_type_;
  bool autocast_ = false;
  at::ScalarType autocast_dtype_{};
  std::int64_t calls_ = 0;
  std::vector<std::int64_t> seen_;  ///< how often, by batch size; empty: nobody wants to know
  std::int64_t report_at_ = 0;
  py::object on_seen_;
};

}  // namespace xpugraph
