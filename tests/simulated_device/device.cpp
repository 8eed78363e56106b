// A simulated accelerator in torch's slot for devices of others (PrivateUse1): two devices, each
// with asynchronous streams, a caching allocator and a generator of random numbers.
#include "kernels.h"
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/extension.h>

namespace sim {

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kType, (c10::DeviceIndex)current_device}; }
  void setDevice(c10::Device device) const override { if (device.has_index()) current_device = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { setDevice(device); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  static int index_of(c10::Device device) { return device.has_index() ? device.index() : current_device; }
  static int number(const c10::Stream& stream) { return index_of(stream.device()) * kStreamsEach + (int)stream.id(); }
  c10::Stream stream(int device, int id) const {
    return c10::Stream(c10::Stream::UNSAFE, {kType, (c10::DeviceIndex)device}, id);
  }
  c10::Stream getStream(c10::Device device) const override { return stream(index_of(device), current_streams[index_of(device)]); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(index_of(device), 0); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return stream(index_of(device), 1 + streams_made++ % (kStreamsEach - 1));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream to) const override {
    auto before = getStream(to.device());
    current_streams[index_of(to.device())] = (int)to.id();
    return before;
  }
  bool queryStream(const c10::Stream& stream) const override {
    auto& one = streams()[number(stream)];
    return one.done() >= one.put();
  }
  void synchronizeStream(const c10::Stream& stream) const override { wait_for_stream(number(stream), "stream.synchronize"); }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    for (int i = 0; i < kStreamsEach; i++) wait_for_stream(device * kStreamsEach + i, "synchronize");
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    record_stream(data.get(), number(stream));
  }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}  // a stream may still come by
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new Event();
    sim::record((Event*)*event, number(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event) wait_on_stream((Event*)event, number(stream));
  }
  bool queryEvent(void* event) const override {
    if (!event) return true;
    auto* one = (Event*)event;
    std::lock_guard<std::mutex> lock(one->mutex);
    return one->reached >= one->recorded;
  }
  void synchronizeEvent(void* event) const override { if (event) wait_on_host((Event*)event); }
  double elapsedTime(void* begin, void* end, const c10::DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(((Event*)end)->at - ((Event*)begin)->at).count();
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)
REGISTER_ALLOCATOR(kType, &allocator)

// Random numbers by seed and offset, as philox has them.
struct Generator final : c10::GeneratorImpl {
  uint64_t seed_ = 42, offset_ = 0;
  explicit Generator(c10::DeviceIndex device)
      : c10::GeneratorImpl({kType, device}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
  void set_current_seed(uint64_t seed) override { seed_ = seed; offset_ = 0; }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override { return seed_; }
  void set_state(const c10::TensorImpl& state) override {
    auto* words = (const uint64_t*)state.data();
    seed_ = words[0];
    offset_ = words[1];
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto state = at::empty({16}, at::kByte);
    auto* words = (uint64_t*)state.data_ptr();
    words[0] = seed_;
    words[1] = offset_;
    return state.getIntrusivePtr();
  }
  Generator* clone_impl() const override {
    auto* twin = new Generator(device().index());
    twin->seed_ = seed_;
    twin->offset_ = offset_;
    return twin;
  }
  uint64_t draw() {
    std::lock_guard<std::mutex> lock(mutex_);
    return seed_ * 0x9E3779B97F4A7C15ull + 4 * offset_++;
  }
};
const at::Generator& generator_of(int device) {
  static std::vector<at::Generator> all{at::make_generator<Generator>(0), at::make_generator<Generator>(1)};
  return all.at(device < 0 ? current_device : device);
}
uint64_t draw() { return ((Generator*)generator_of(current_device).unsafeGetGeneratorImpl())->draw(); }

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(c10::DeviceIndex device) const override { current_device = device; }
  c10::DeviceIndex getCurrentDevice() const override { return (c10::DeviceIndex)current_device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    auto before = getCurrentDevice();
    if (device >= 0) current_device = device;
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  bool isPinnedPtr(const void* place) const override {
    std::lock_guard<std::recursive_mutex> order(enqueueing);
    auto* block = block_of(place);
    return block && block->stream == kPinned;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return generator_of(device); }
  at::Device getDeviceFromPtr(void*) const override { return {kType, (c10::DeviceIndex)current_device}; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    auto* impl = storage.unsafeGetStorageImpl();
    auto fresh = allocator.allocate(size);
    void* to = fresh.get();
    const void* from = storage.data();
    size_t kept = std::min(size, storage.nbytes());
    if (kept) enqueue(current_stream(), "resize", {{from, false}, {to, true}}, [=] { std::memcpy(to, from, kept); });
    impl->set_data_ptr_noswap(std::move(fresh));
    impl->set_nbytes(size);
  }
};

}  // namespace sim

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace sim;
  m.def("register", [] { static bool once = (at::RegisterPrivateUse1HooksInterface(new Hooks()), true); (void)once; });
  m.def("device_count", [] { return kDevices; });
  m.def("current_device", [] { return current_device; });
  m.def("generator", [](int device) { return generator_of(device); });
  m.def("set_link", [](double bytes_per_s) { settings.bytes_per_s = bytes_per_s; });
  m.def("set_kernel_us", [](double us) { settings.kernel_us = us; });
  m.def("set_capacity", [](int64_t bytes) { settings.capacity = bytes; });
  m.def("capacity", [] { return settings.capacity.load(); });
  m.def("blocks", [] {                               // bytes of all that is in use on devices
    std::lock_guard<std::recursive_mutex> order(enqueueing);
    std::vector<size_t> sizes;
    for (auto& [place, block] : blocks) if (block.used && block.stream != kPinned) sizes.push_back(block.requested);
    return sizes;
  });
  m.def("races", [] {
    std::lock_guard<std::mutex> lock(findings.mutex);
    return std::exchange(findings.races, {});
  });
  m.def("host_waits", [] {
    std::lock_guard<std::mutex> lock(findings.mutex);
    return std::exchange(findings.host_waits, {});
  });
}
