// SPDX-License-Identifier: MIT
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "runtime/sycl_cpu_hooks.h"
#include "runtime/sycl_streams.h"
#include "torch/sycl_register.h"
#include "torch/sycl_tensor.h"

namespace xpugraph::sycl_device {

namespace {

using sycl_cpu::Event;

Stream unwrap(const c10::Stream& stream) { return sycl_cpu::stream(static_cast<int>(stream.id())); }

c10::Stream wrap(int id) { return c10::Stream(c10::Stream::UNSAFE, the_device(), id); }

const Event& event_of(void* event) { return *static_cast<Event*>(event); }

/// What torch.Stream, torch.Event and torch.accelerator call. A stream's id is its number in sycl_streams.h; an event
/// is a heap-allocated sycl_cpu::Event that torch owns.
class SyclGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kSycl; }
  c10::Device exchangeDevice(c10::Device) const override { return the_device(); }
  c10::Device getDevice() const override { return the_device(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Stream getStream(c10::Device) const override { return wrap(sycl_cpu::stream_id(current_stream())); }
  c10::Stream getDefaultStream(c10::Device) const override { return wrap(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return wrap(sycl_cpu::new_stream()); }
  c10::Stream getNewStream(c10::Device, int) const override { return wrap(sycl_cpu::new_stream()); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream previous = getStream(the_device());
    sycl_cpu_hooks()->set_current_stream(unwrap(stream));
    return previous;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return unwrap(stream).handle; }
  bool queryStream(const c10::Stream& stream) const override { return sycl_cpu::idle(unwrap(stream)); }
  // An override where torch asks for it; torch 2.11 does not.
  virtual bool isStreamCapturing(const c10::Stream& stream) const { return sycl_cpu::recording(unwrap(stream)); }
  void synchronizeStream(const c10::Stream& stream) const override {
    if (unwrap(stream) == current_stream()) refuse_if_capturing("synchronising the stream");
    sycl_cpu::synchronize(unwrap(stream));
  }
  void synchronizeDevice(const c10::DeviceIndex) const override {
    refuse_if_capturing("synchronising the device");
    sycl_cpu::drain();
    sycl_cpu::raise_pending();
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    auto mark = std::make_unique<Event>(Event::record(unwrap(stream)));
    delete static_cast<Event*>(*event);
    *event = mark.release();
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) event_of(event).block(unwrap(stream));
  }
  bool queryEvent(void* event) const override { return event == nullptr || event_of(event).done(); }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    if (!event_of(event).done()) refuse_if_capturing("waiting for an event");
    event_of(event).wait();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start != nullptr && end != nullptr, "elapsed time needs two events that were recorded");
    return event_of(start).elapsed_ms_until(event_of(end));
  }

  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const override {
    sycl_cpu_hooks()->allocator().record_stream(pointer.get(), unwrap(stream));
  }
};

}  // namespace

void register_guard() { static c10::impl::DeviceGuardImplRegistrar registrar(kSycl, new SyclGuard()); }

}  // namespace xpugraph::sycl_device
