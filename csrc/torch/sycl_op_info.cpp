// SPDX-License-Identifier: MIT
#include "torch/sycl_op_info.h"

#include <set>

namespace xpugraph::sycl_device {

namespace {

using c10::OperatorHandle;

/// A signature holds the values of numbers too; an argument that changes at every call would fill the memory.
constexpr std::size_t kMaxOutcomes = 16384;

const std::unordered_map<std::string, std::vector<OperatorHandle>>& overloads() {
  static const auto& table = *new auto([] {
    std::unordered_map<std::string, std::vector<OperatorHandle>> found;
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      if (auto op = dispatcher.findSchema(name)) found[name.name].push_back(*op);
    }
    return found;
  }());
  return table;
}

std::vector<OperatorHandle> overloads_of(const OperatorHandle& op) {
  const auto found = overloads().find(op.operator_name().name);
  return found == overloads().end() ? std::vector<OperatorHandle>{op} : found->second;
}

bool is_tensors(const c10::TypePtr& type) {
  return type->isSubtypeOf(*c10::TensorType::get()) || type->isSubtypeOf(*c10::ListType::ofTensors());
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

bool depends_on_values(const OperatorHandle& op) {
  // With a mask as index these wait inside, through nonzero; with integers they need not.
  static const std::set<std::string> not_always{"aten::index", "aten::index_put_", "aten::_index_put_impl_",
                                                "aten::index_put"};
  for (const c10::Argument& result : op.schema().returns()) {
    if (!is_tensors(result.type())) return true;
  }
  if (not_always.count(op.operator_name().name) != 0) return false;
  for (const OperatorHandle& overload : overloads_of(op)) {
    if (overload.hasTag(at::Tag::dynamic_output_shape) || overload.hasTag(at::Tag::data_dependent_output)) return true;
  }
  return false;
}

/// The overload with the same arguments followed by one written tensor per return.
std::optional<OperatorHandle> find_out_variant(const OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  const auto& arguments = schema.arguments();
  const auto& returns = schema.returns();
  for (const c10::Argument& result : returns) {
    if (!result.type()->isSubtypeOf(*c10::TensorType::get())) return std::nullopt;
  }
  for (const OperatorHandle& candidate : overloads_of(op)) {
    const auto& extended = candidate.schema().arguments();
    if (extended.size() != arguments.size() + returns.size()) continue;
    bool fits = true;
    for (std::size_t i = 0; fits && i < arguments.size(); ++i) {
      fits = extended[i].name() == arguments[i].name() && *extended[i].type() == *arguments[i].type() &&
             !is_written(extended[i]);
    }
    for (std::size_t i = arguments.size(); fits && i < extended.size(); ++i) {
      fits = is_written(extended[i]) && extended[i].type()->isSubtypeOf(*c10::TensorType::get());
    }
    if (fits) return candidate;
  }
  return std::nullopt;
}

/// The written argument that a return is, by alias set.
int argument_of_return(const c10::FunctionSchema& schema, const c10::Argument& result) {
  if (!is_written(result)) return -1;
  const auto& arguments = schema.arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (is_written(arguments[i]) && arguments[i].alias_info()->beforeSets() == result.alias_info()->beforeSets()) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

}  // namespace

OpInfo& OpInfo::of(const OperatorHandle& op) {
  static auto& mutex = *new std::mutex();
  static auto& records = *new std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<OpInfo>>();
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<OpInfo>& record = records[&op.schema()];
  if (!record) record = std::make_unique<OpInfo>(op);
  return *record;
}

OpInfo::OpInfo(const OperatorHandle& handle) : op(handle), name(toString(handle.operator_name())) {
  static const std::set<std::string> takes_cpu{"aten::index", "aten::_index_put_impl_", "aten::_pack_padded_sequence"};
  const c10::FunctionSchema& schema = op.schema();
  waits = depends_on_values(op);
  // These get here only when they draw nothing (see sycl_native_ops.cpp).
  static const std::set<std::string> without_dropout{"aten::scaled_dot_product_attention", "aten::lstm", "aten::gru"};
  random = op.hasTag(at::Tag::nondeterministic_seeded) && without_dropout.count(schema.name()) == 0;
  cpu_arguments = takes_cpu.count(schema.name()) != 0;
  bool writes = false;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    writes = writes || is_written(argument);
    if (is_written(argument) && argument.kwarg_only()) out_arguments.push_back(i);
    if (argument.type()->isSubtypeOf(*c10::OptionalType::create(c10::GeneratorType::get())))
      generator = static_cast<int>(i);
  }
  random = random || generator >= 0;
  for (const c10::Argument& result : schema.returns()) {
    returns.push_back(argument_of_return(schema, result));
    views = views || (result.alias_info() != nullptr && !result.alias_info()->isWrite());
  }
  if (!writes && !random && !waits) out_variant = find_out_variant(op);
}

std::shared_ptr<const Outcome> OpInfo::find(const Signature& signature) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = outcomes_.find(signature);
  return found == outcomes_.end() ? nullptr : found->second;
}

void OpInfo::store(Signature signature, std::shared_ptr<const Outcome> outcome) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (outcomes_.size() >= kMaxOutcomes) outcomes_.clear();
  outcomes_.insert_or_assign(std::move(signature), std::move(outcome));
}

std::size_t OpInfo::Hash::operator()(const Signature& signature) const {
  std::size_t hash = signature.size();
  for (const std::int64_t value : signature)
    hash = (hash ^ static_cast<std::size_t>(value)) * 0x9E3779B97F4A7C15u + (hash >> 29);
  return hash;
}

}  // namespace xpugraph::sycl_device
