// SPDX-License-Identifier: MIT
#include "torch/sycl_fallback.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <torch/library.h>

#include "core/error.h"
#include "runtime/sycl_cpu_hooks.h"
#include "torch/sycl_op_call.h"
#include "torch/sycl_register.h"
#include "torch/sycl_tensor.h"

namespace xpugraph::sycl_device {

namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;
using OutcomePtr = std::shared_ptr<const Outcome>;

/// A kernel may leave its result conjugated lazily (linalg_lu_solve does). The bit is the alias's; the device tensor
/// has none.
void resolve_conjugate(const Tensor& out) {
  if (!out.is_conj()) return;
  out._set_conj(false);
  out.conj_physical_();
}

/// One call of a kernel, ready to run on the worker as often as a graph is replayed: the arguments are translated
/// once, and what the kernel does not write in place is copied to `targets`.
struct Task {
  const OpInfo* info;
  c10::OperatorHandle op;
  Stack arguments;
  std::vector<Tensor> targets;
  std::vector<Tensor> complex_outs;

  void operator()() const {
    try {
      Stack stack = arguments;
      op.callBoxed(stack);
      for (const Tensor& out : complex_outs) resolve_conjugate(out);
      if (targets.empty()) return;
      const std::vector<Tensor> results = fresh_tensors(*info, stack);
      for (std::size_t i = 0; i < targets.size(); ++i) {
        if (targets[i].defined()) targets[i].copy_(results[i]);
      }
    } catch (const c10::Error& error) {
      throw DeviceError(info->name + " failed on the sycl device: " + error.what_without_backtrace());
    }
  }
};

/// Gives an out= argument the shape that the operator wants it to have.
void conform(const Tensor& tensor, const TensorSpec& spec) {
  if (tensor.sizes().equals(spec.sizes) && tensor.strides().equals(spec.strides)) return;
  tensor.resize_(spec.sizes);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(spec.sizes, spec.strides);
}

void conform_outs(const OpInfo& info, c10::ArrayRef<IValue> arguments, const Outcome& outcome) {
  std::size_t next = 0;
  for (const std::size_t index : info.out_arguments) {
    if (arguments[index].isTensor()) conform(arguments[index].toTensor(), outcome.outs[next++]);
  }
}

std::vector<Tensor> make_fresh(const Outcome& outcome) {
  std::vector<Tensor> fresh;
  fresh.reserve(outcome.fresh.size());
  for (const TensorSpec& spec : outcome.fresh) {
    fresh.push_back(spec.defined ? empty_strided(spec.sizes, spec.strides, spec.dtype) : Tensor());
  }
  return fresh;
}

/// The operator's returns: arguments it wrote, fresh tensors, and numbers (which only operators that wait return).
Stack assemble(const OpInfo& info, Arguments arguments, const Outcome& outcome, const std::vector<Tensor>& fresh,
               const Stack* host_results) {
  Stack returns;
  std::size_t next = 0;
  std::size_t next_size = 0;
  for (std::size_t r = 0; r < info.returns.size(); ++r) {
    if (info.returns[r] >= 0) {
      returns.push_back(arguments[info.returns[r]]);
      continue;
    }
    const std::int64_t list_size = outcome.list_sizes[next_size++];
    if (list_size >= 0) {
      c10::List<Tensor> list;
      for (std::int64_t i = 0; i < list_size; ++i) list.push_back(fresh[next++]);
      returns.emplace_back(std::move(list));
    } else if (host_results != nullptr && !(*host_results)[r].isTensor()) {
      returns.push_back((*host_results)[r]);
    } else {
      returns.emplace_back(fresh[next++]);
    }
  }
  return returns;
}

Tensor stand_in(const Tensor& tensor, c10::DeviceType device) {
  Tensor made = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(device));
  made.zero_();
  if (tensor.is_conj()) made._set_conj(true);
  if (tensor.is_neg()) made._set_neg(true);
  return made;
}

bool contains(const std::vector<std::size_t>& indices, std::size_t index) {
  return std::find(indices.begin(), indices.end(), index) != indices.end();
}

/// Whether the out= overload takes these arguments at all: some refuse what the functional one accepts.
bool out_variant_works(const OpInfo& info, const Stack& arguments, const Outcome& outcome) {
  if (!info.out_variant) return false;
  Stack stack = arguments;
  std::vector<Tensor> outs;
  std::vector<Tensor> memory;
  for (const TensorSpec& spec : outcome.fresh) {
    if (!spec.defined) return false;
    memory.push_back(at::empty_strided(spec.sizes, spec.strides, at::TensorOptions(spec.dtype)));
    outs.push_back(Aliases()(memory.back()));  // not resizable, as later
    stack.emplace_back(outs.back());
  }
  try {
    info.out_variant->callBoxed(stack);
    for (std::size_t i = 0; i < outs.size(); ++i) {
      if (!outs[i].sizes().equals(outcome.fresh[i].sizes) || !outs[i].strides().equals(outcome.fresh[i].strides))
        return false;
    }
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

/// First call with these arguments, outside of a capture: runs the operator for real, waits, and learns from it.
Stack run_and_learn(const OpInfo& info, Arguments arguments, OutcomePtr* learned) {
  Aliases alias;
  std::vector<std::pair<Tensor, Tensor>> outs;  // what the operator may resize, and where its content comes from
  Translation translation{[&](const Tensor& tensor, std::size_t index) {
                            if (!contains(info.out_arguments, index)) return alias(tensor);
                            outs.emplace_back(
                                at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU)),
                                Aliases()(tensor));
                            return outs.back().first;
                          },
                          at::kCPU};
  const Stack inputs = translate(info, arguments, translation);
  Stack results;
  auto outcome = std::make_shared<Outcome>();
  run_here([&] {
    for (auto& [out, content] : outs) out.copy_(content);
    results = inputs;
    info.op.callBoxed(results);
    *outcome = describe(info, inputs, results);
    outcome->use_out_variant = out_variant_works(info, inputs, *outcome);
  });
  conform_outs(info, arguments, *outcome);
  std::vector<Tensor> fresh = make_fresh(*outcome);
  // Results go to the device's memory in stream order; the closure keeps them until then.
  std::vector<std::pair<Tensor, Tensor>> copies;
  Aliases target;
  const std::vector<Tensor> computed = fresh_tensors(info, results);
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    if (fresh[i].defined()) copies.emplace_back(target(fresh[i]), computed[i]);
  }
  for (const std::size_t index : info.out_arguments) {
    if (arguments[index].isTensor()) copies.emplace_back(target(arguments[index].toTensor()), inputs[index].toTensor());
  }
  if (!copies.empty()) {
    submit_here([copies = std::move(copies)] {
      for (const auto& [to, from] : copies) to.copy_(from);
    });
  }
  *learned = outcome;
  return assemble(info, arguments, *outcome, fresh, &results);
}

/// First call with these arguments in a capture, where nothing may run: tries the operator on zeros, which most accept
/// and which costs a fraction of a meta kernel; then on meta tensors.
OutcomePtr imagine(const OpInfo& info, Arguments arguments) {
  const auto attempt = [&](c10::DeviceType device) {
    std::vector<std::pair<const c10::TensorImpl*, Tensor>> made;
    Translation translation{[&](const Tensor& tensor, std::size_t index) {
                              for (const auto& [source, standing] : made) {
                                if (source == tensor.unsafeGetTensorImpl() && !contains(info.out_arguments, index)) {
                                  return standing;
                                }
                              }
                              made.emplace_back(tensor.unsafeGetTensorImpl(), stand_in(tensor, device));
                              return made.back().second;
                            },
                            device, /*scratch_generator=*/true};
    const Stack inputs = translate(info, arguments, translation);
    Stack results = inputs;
    info.op.callBoxed(results);
    auto outcome = std::make_shared<Outcome>(describe(info, inputs, results));
    outcome->use_out_variant = device == c10::kCPU && out_variant_works(info, inputs, *outcome);
    return outcome;
  };
  try {
    return attempt(c10::kCPU);
  } catch (const std::exception&) {
    try {
      return attempt(c10::kMeta);
    } catch (const std::exception&) {
      // The error on real shapes and types, the outer one, is what eager would say.
    }
    throw;
  }
}

/// Every later call: outputs are made from what is known, the kernel runs when its turn comes.
Stack submit_known(const OpInfo& info, Arguments arguments, const Outcome& outcome) {
  conform_outs(info, arguments, outcome);
  const std::vector<Tensor> fresh = make_fresh(outcome);
  Aliases alias;
  const Translation translation{[&](const Tensor& tensor, std::size_t) { return alias(tensor); }, at::kCPU};
  Task task{&info, info.op, translate(info, arguments, translation), {}, {}};
  if (outcome.use_out_variant) {
    task.op = *info.out_variant;
    for (const Tensor& tensor : fresh) task.arguments.emplace_back(alias(tensor));
  } else {
    for (const Tensor& tensor : fresh) task.targets.push_back(tensor.defined() ? alias(tensor) : Tensor());
  }
  for (const std::size_t index : info.out_arguments) {
    const IValue& out = task.arguments[index];
    if (out.isTensor() && out.toTensor().is_complex() && !out.toTensor().is_conj())
      task.complex_outs.push_back(out.toTensor());
  }
  submit_here(std::move(task));
  return assemble(info, arguments, outcome, fresh, nullptr);
}

Stack call(OpInfo& info, Arguments arguments) {
  const auto hooks = sycl_cpu_hooks();
  const bool capturing = hooks->capturing();
  if (info.waits) refuse_if_capturing(info.name);
  if (info.random && capturing) hooks->note_random(info.name);
  OutcomePtr outcome;
  if (info.waits) return run_and_learn(info, arguments, &outcome);

  Signature signature = signature_of(arguments);
  outcome = info.find(signature);
  if (outcome) return submit_known(info, arguments, *outcome);
  if (!capturing) {
    Stack returns = run_and_learn(info, arguments, &outcome);
    info.store(std::move(signature), outcome);
    return returns;
  }
  outcome = imagine(info, arguments);
  info.store(std::move(signature), outcome);
  return submit_known(info, arguments, *outcome);
}

}  // namespace

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  OpInfo& info = OpInfo::of(op);
  TORCH_CHECK_NOT_IMPLEMENTED(!info.views, info.name, " makes a view in a way that the sycl device does not know");
  const std::size_t count = op.schema().arguments().size();
  Stack returns = call(info, Arguments(*stack).slice(stack->size() - count));
  stack->resize(stack->size() - count);
  std::move(returns.begin(), returns.end(), std::back_inserter(*stack));
}

void register_fallback() {
  static auto& every_op =
      *new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  every_op.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
  // Under autocast operators run in the types they are given: the CPU's reduced-precision kernels are no faster.
  static auto& autocast =
      *new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
  autocast.fallback(torch::CppFunction::makeFallthrough());
}

}  // namespace xpugraph::sycl_device
