// SPDX-License-Identifier: MIT
#include "torch/graphed_call.h"

#include <ATen/autocast_mode.h>

#include "core/error.h"

namespace xpugraph {

GraphedCall::GraphedCall(std::unique_ptr<GraphedModule> module, CallSignature signature, Node result,
                         py::object unflatten_node, py::object reject)
    : module_(std::move(module)),
      signature_(std::move(signature)),
      result_(std::move(result)),
      unflatten_node_(std::move(unflatten_node)),
      reject_(std::move(reject)),
      device_type_(signature_.device().type()) {
  autocast_ = at::autocast::is_autocast_enabled(device_type_);
  if (autocast_) autocast_dtype_ = at::autocast::get_autocast_dtype(device_type_);
}

GraphedCall::~GraphedCall() {
  const py::gil_scoped_release release;
  module_.reset();
}

void GraphedCall::serve(ModuleWatch watch) { watch_ = std::move(watch); }

bool GraphedCall::same_autocast() const {
  const bool now = at::autocast::is_autocast_enabled(device_type_);
  return now == autocast_ && (!now || at::autocast::get_autocast_dtype(device_type_) == autocast_dtype_);
}

std::optional<std::string> GraphedCall::match(const py::args& args, const py::kwargs& kwargs,
                                              CallSignature::Match& match) const {
  if (auto reason = signature_.match(args.ptr(), kwargs.ptr(), match)) return reason;
  if (match.batch_size == 0) return "the batch is empty";
  if (!same_autocast()) return "autocast is not as it was when the graphs were recorded";
  return std::nullopt;
}

py::object GraphedCall::operator()(const py::args& args, const py::kwargs& kwargs) {
  CallSignature::Match call;
  if (const auto reason = match(args, kwargs, call)) return reject_(*reason, args, kwargs);
  // A call that writes to its arguments must know before; for any other the device works meanwhile, and what the graphs
  // read is kept alive, so that a late "no" costs nothing but this result.
  if (module_->writes_inputs()) need_unchanged();
  GraphedModule::Tensors outputs;
  {
    const py::gil_scoped_release release;
    outputs = module_->run(call.tensors, call.batch_size);
  }
  if (!module_->writes_inputs()) need_unchanged();
  count(call.batch_size);
  return build_object(result_, outputs, unflatten_node_);
}

py::object GraphedCall::trial(const py::args& args, const py::kwargs& kwargs, std::int64_t size) {
  CallSignature::Match call;
  if (const auto reason = match(args, kwargs, call)) throw InputError(*reason);
  GraphedModule::Tensors outputs;
  {
    const py::gil_scoped_release release;
    outputs = module_->trial(call.tensors, call.batch_size, size);
  }
  return build_object(result_, outputs, unflatten_node_);
}

void GraphedCall::count(std::int64_t batch_size) {
  ++calls_;
  if (batch_size < static_cast<std::int64_t>(seen_.size()) && ++seen_[batch_size] == report_at_) on_seen_(batch_size);
}

void GraphedCall::report_seen(std::int64_t times, std::int64_t largest, py::object on_seen) {
  seen_.assign(static_cast<std::size_t>(largest) + 1, 0);
  report_at_ = times;
  on_seen_ = std::move(on_seen);
}

void GraphedCall::need_unchanged() {
  const std::string& changed = watch_.changed();
  if (changed.empty()) return;
  throw StateError("'" + changed +
                   "' of the module was changed after recording (for example by load_state_dict(assign=True), .to(), " +
                   "train() or an assignment), and the graphs still use what was recorded. Change weights in place " +
                   "(copy_, load_state_dict), or deactivate() and activate() the backend to record again");
}

void GraphedCall::record(std::int64_t size, const py::function& forward, bool publish) {
  const py::gil_scoped_release release;
  module_->record(
      size,
      [&](const GraphedModule::Tensors& inputs) {
        const py::gil_scoped_acquire acquire;
        return py::cast<GraphedModule::Tensors>(forward(inputs));
      },
      publish);
}

void GraphedCall::replay(std::int64_t size) {
  const py::gil_scoped_release release;
  module_->replay(size);
}

}  // namespace xpugraph
