// SPDX-License-Identifier: MIT
#include "torch/sycl_generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <torch/csrc/utils/pybind.h>

#include "runtime/sycl_streams.h"
#include "torch/sycl_device.h"
#include "torch/sycl_register.h"
#include "torch/sycl_tensor.h"

namespace xpugraph::sycl_device {

namespace {

class SyclGenerator final : public c10::GeneratorImpl {
 public:
  explicit SyclGenerator(at::Generator cpu)
      : c10::GeneratorImpl(the_device(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        cpu_(std::move(cpu)),
        seed_(cpu_.current_seed()) {}

  /// What work that is submitted now draws from.
  at::Generator for_work() {
    const std::lock_guard<std::mutex> lock(own_);
    recorded_ = recorded_ || is_capturing();
    return cpu_;
  }

  /// Waits for nothing: torch's callers hold the GIL and mutex_, and who waits gives the GIL up, which another thread
  /// that wants mutex_ would then keep. Work submitted before keeps the generator it has, on whatever stream it is;
  /// work submitted later gets another. Graphs keep theirs for good, so one they have is seeded in stream order instead.
  void set_current_seed(std::uint64_t seed) override {
    refuse_if_capturing("seeding the sycl device's random generator");
    const std::lock_guard<std::mutex> lock(own_);
    if (recorded_) {
      submit_here([cpu = cpu_, seed]() mutable {
        const std::lock_guard<std::mutex> in_use(cpu.mutex());
        cpu.set_current_seed(seed);
      });
    } else {
      cpu_ = at::detail::createCPUGenerator(seed);
    }
    seed_ = seed;
  }
  void set_offset(std::uint64_t offset) override { quiet().set_offset(offset); }
  std::uint64_t get_offset() const override { return quiet().get_offset(); }
  std::uint64_t current_seed() const override { return seed_; }
  std::uint64_t seed() override {
    const std::uint64_t fresh = c10::detail::getNonDeterministicRandom();
    set_current_seed(fresh);
    return fresh;
  }
  void set_state(const c10::TensorImpl& state) override {
    quiet().unsafeGetGeneratorImpl()->set_state(state);
    seed_ = cpu_.current_seed();
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return quiet().unsafeGetGeneratorImpl()->get_state();
  }

 private:
  SyclGenerator* clone_impl() const override { return new SyclGenerator(quiet().clone()); }

  /// The generator once nothing on the device draws from it any more.
  at::Generator& quiet() const {
    refuse_if_capturing("seeding or reading the sycl device's random generator");
    if (PyGILState_Check() != 0) {
      const pybind11::gil_scoped_release release;  // an operator in flight may be written in Python
      sycl_cpu::drain();
    } else {
      sycl_cpu::drain();
    }
    return cpu_;
  }

  std::mutex own_;  ///< of what is below; mutex_ is not held where work is submitted
  mutable at::Generator cpu_;
  std::uint64_t seed_;
  bool recorded_ = false;  ///< a graph draws from cpu_
};

struct SyclHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return default_generator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return new_generator(); }
  at::Device getDeviceFromPtr(void*) const override { return the_device(); }
  /// Device memory is host memory here, so pageable memory is as good as pinned.
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::kCPU); }

  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    c10::DataPtr grown = allocator()->allocate(bytes);
    const std::size_t kept = std::min(bytes, storage.nbytes());
    if (kept != 0) {
      submit_here([to = grown.get(), from = storage.data(), kept] { std::memcpy(to, from, kept); });
    }
    storage.set_data_ptr_noswap(std::move(grown));
    storage.set_nbytes(bytes);
  }
};

}  // namespace

const at::Generator& default_generator() {
  static const at::Generator& generator = *new at::Generator(new_generator());
  return generator;
}

at::Generator new_generator() { return at::make_generator<SyclGenerator>(at::detail::createCPUGenerator()); }

at::Generator cpu_generator(const at::Generator& generator) {
  auto* sycl = dynamic_cast<SyclGenerator*>(generator.unsafeGetGeneratorImpl());
  TORCH_CHECK(sycl != nullptr, "Expected a 'sycl' device type for generator but found '", generator.device().type(),
              "'");
  return sycl->for_work();
}

void register_hooks() { at::RegisterPrivateUse1HooksInterface(new SyclHooks()); }

}  // namespace xpugraph::sycl_device
