// SPDX-License-Identifier: MIT
/// @file What the boxed fallback knows about an operator: facts read from its schema, and the output shapes it has
/// seen. Owns one record per operator, kept until the process ends. Throws nothing of its own. Threads: any (locked).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace xpugraph::sycl_device {

/// How one output tensor looks. `defined` is false for a tensor that the operator leaves out.
struct TensorSpec {
  bool defined = false;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  at::ScalarType dtype = at::kFloat;
};

/// What an operator makes of one argument signature.
struct Outcome {
  std::vector<TensorSpec> outs;          ///< of its out= arguments, in order
  std::vector<TensorSpec> fresh;         ///< of the tensors it returns, lists flattened
  std::vector<std::int64_t> list_sizes;  ///< per return that is fresh: length of a list, -1 for a single tensor
  bool use_out_variant = false;
};

using Signature = std::vector<std::int64_t>;

class OpInfo {
 public:
  /// The one record of `op`.
  static OpInfo& of(const c10::OperatorHandle& op);

  explicit OpInfo(const c10::OperatorHandle& op);

  const c10::OperatorHandle op;
  const std::string name;                          ///< as in "aten::add.out"
  bool waits = false;                              ///< its result depends on values, so the host must wait for them
  bool random = false;                             ///< it draws random numbers
  bool views = false;                              ///< returns a view of an argument
  bool cpu_arguments = false;                      ///< takes CPU tensors beside device tensors
  int generator = -1;                              ///< index of its Generator argument
  std::vector<std::size_t> out_arguments;          ///< indices of its out= arguments
  std::vector<int> returns;                        ///< per return: the argument it is, or -1 for a fresh one
  std::optional<c10::OperatorHandle> out_variant;  ///< the out= overload of a functional operator

  std::shared_ptr<const Outcome> find(const Signature& signature);
  void store(Signature signature, std::shared_ptr<const Outcome> outcome);

 private:
  struct Hash {
    std::size_t operator()(const Signature& signature) const;
  };
  std::mutex mutex_;
  std::unordered_map<Signature, std::shared_ptr<const Outcome>, Hash> outcomes_;
};

}  // namespace xpugraph::sycl_device
