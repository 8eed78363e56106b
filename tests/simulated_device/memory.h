// Memory of the device: cached per stream and handed out again at once, as CUDA's allocator does,
// and filled with 0xFF on its stream when it is freed. Pinned memory of the host, likewise cached.
#pragma once
#include "order.h"
#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <cstdlib>
#include <cstring>
#include <set>

namespace sim {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr size_t kRounding = 512;
constexpr int kPinned = -1;                          // in the place of a stream

struct Uses {                                        // of a block of memory, as far as they matter
  int writer = -1;
  uint64_t written = 0;
  std::string writer_name;
  Clock reads{};
  std::array<std::string, kStreams> reader_names;
};
struct Block {
  size_t size = 0, requested = 0;
  bool reserved = false;
  int stream = 0;                                    // in whose order it is used again
  bool used = true;
  uint64_t number = 0;                               // of what it was handed out for
  Uses uses;
  std::set<int> recorded;                            // streams told of by record_stream
};
struct Waiting { char* memory; std::vector<std::pair<int, uint64_t>> until; Clock clock; };
struct Statistics { int64_t now = 0, peak = 0; void add(int64_t n) { now += n; peak = std::max(peak, now); } };
struct Counts { Statistics requested, allocated, reserved; };

inline std::map<char*, Block> blocks;                // never given back to the system
inline std::map<std::pair<int, size_t>, std::vector<char*>> idle;  // by stream and size
inline std::vector<Waiting> waiting;                 // freed, while other streams may use it
inline std::array<Counts, kDevices> counts;
inline uint64_t handed_out = 0;

inline Block* block_of(const void* place) {
  auto next = blocks.upper_bound((char*)place);
  if (next == blocks.begin()) return nullptr;
  --next;
  return (char*)place < next->first + next->second.size ? &next->second : nullptr;
}

// ------------------------------------------------------------------------------ the checker
inline void use(int stream, const void* place, bool writes, const std::string& name) {
  Block* block = block_of(place);
  if (!block) return;
  Uses& uses = block->uses;
  const Clock& known = streams()[stream].clock;
  auto me = [&] { return name + " on stream " + std::to_string(stream); };
  auto it = [&] {
    return std::string(block->stream == kPinned ? "pinned" : "device") + " block " +
        std::to_string(block->number) + " (" + std::to_string(block->requested) + " bytes)";
  };
  if (!block->used) findings.race(me() + " uses freed " + it());
  if (uses.writer >= 0 && uses.written > known[uses.writer])
    findings.race(me() + (writes ? " writes " : " reads ") + it() + " not ordered after write by " +
                  uses.writer_name + " on stream " + std::to_string(uses.writer));
  if (!writes) {
    uses.reads[stream] = known[stream];
    uses.reader_names[stream] = name;
    return;
  }
  for (int i = 0; i < kStreams; i++)
    if (uses.reads[i] > known[i])
      findings.race(me() + " writes " + it() + " not ordered after read by " +
                    uses.reader_names[i] + " on stream " + std::to_string(i));
  uses.writer = stream;
  uses.written = known[stream];
  uses.writer_name = name;
  uses.reads = {};
}
struct Place { const void* place; bool writes; };
inline void enqueue(int stream, const std::string& name, const std::vector<Place>& places,
                    std::function<void()> work) {
  std::lock_guard<std::recursive_mutex> order(enqueueing);
  Stream& on = streams()[stream];
  join(on.clock, host_clock);
  on.clock[stream]++;
  for (const auto& each : places) if (!each.writes) use(stream, each.place, false, name);
  for (const auto& each : places) if (each.writes) use(stream, each.place, true, name);
  on.push(std::move(work));
}

// ------------------------------------------------------------------------------ blocks
inline void make_idle(char* memory) {
  Block& block = blocks[memory];
  idle[{block.stream, block.size}].push_back(memory);
  if (block.stream == kPinned) return;
  size_t size = block.size;                          // as whoever gets it next would write it
  streams()[block.stream].push([memory, size] { std::memset(memory, 0xFF, size); });
}
inline void look_at_waiting() {                      // what the host finds done is done for all
  for (size_t i = 0; i < waiting.size();) {
    bool done = true;
    for (auto& [stream, put] : waiting[i].until) done = done && streams()[stream].done() >= put;
    if (!done) { i++; continue; }
    join(host_clock, waiting[i].clock);
    make_idle(waiting[i].memory);
    waiting.erase(waiting.begin() + i);
  }
}
inline void give_back(int device) {                  // as allocators do before they raise an error
  for (auto& [memory, block] : blocks)
    if (block.reserved && !block.used && block.stream / kStreamsEach == device) {
      block.reserved = false;
      counts[device].reserved.add(-(int64_t)block.size);
    }
}
inline char* take(size_t bytes, int stream) {
  size_t size = (bytes + kRounding - 1) / kRounding * kRounding;
  std::lock_guard<std::recursive_mutex> order(enqueueing);
  look_at_waiting();
  auto& free = idle[{stream, size}];
  char* memory;
  Counts* count = stream == kPinned ? nullptr : &counts[stream / kStreamsEach];
  if (count && count->allocated.now + (int64_t)size > settings.capacity) {
    give_back(stream / kStreamsEach);
    TORCH_CHECK_WITH(OutOfMemoryError, false, "the simulated device is out of memory: ", size,
                     " bytes asked for, ", count->allocated.now, " allocated");
  }
  if (!free.empty()) { memory = free.back(); free.pop_back(); }
  else {
    memory = (char*)std::aligned_alloc(kRounding, size);
    blocks[memory].size = size;
    blocks[memory].stream = stream;
  }
  Block& block = blocks[memory];
  if (count && !block.reserved) { block.reserved = true; count->reserved.add(size); }
  block.used = true;
  block.requested = bytes;
  block.number = ++handed_out;
  if (count) { count->allocated.add(size); count->requested.add(bytes); }
  return memory;
}
inline void give(void* pointer) {
  if (!pointer) return;
  std::lock_guard<std::recursive_mutex> order(enqueueing);
  char* memory = (char*)pointer;
  Block& block = blocks[memory];
  block.used = false;
  if (block.stream != kPinned) {
    Counts& count = counts[block.stream / kStreamsEach];
    count.allocated.add(-(int64_t)block.size);
    count.requested.add(-(int64_t)block.requested);
  }
  if (block.recorded.empty()) { make_idle(memory); return; }
  Waiting later{memory, {}, {}};
  for (int stream : block.recorded) {
    later.until.emplace_back(stream, streams()[stream].put());
    join(later.clock, streams()[stream].clock);
  }
  block.recorded.clear();
  waiting.push_back(later);
}
inline void record_stream(const void* place, int stream) {
  std::lock_guard<std::recursive_mutex> order(enqueueing);
  Block* block = block_of(place);
  if (block && block->stream != stream) block->recorded.insert(stream);
}

// ------------------------------------------------------------------------------ for torch
struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t size) override {
    c10::Device device(kType, (c10::DeviceIndex)current_device);
    if (!size) return {nullptr, nullptr, &give, device};
    void* memory = take(size, current_stream());
    return {memory, memory, &give, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give; }
  void copy_data(void* to, const void* from, std::size_t size) const override { std::memcpy(to, from, size); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    record_stream(data.get(), stream.device_index() * kStreamsEach + (int)stream.id());
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    std::lock_guard<std::recursive_mutex> order(enqueueing);
    c10::CachingDeviceAllocator::DeviceStats told;
    auto tell = [](auto& to, const Statistics& from) { to[0].current = from.now; to[0].peak = from.peak; };
    tell(told.requested_bytes, counts[device].requested);
    tell(told.allocated_bytes, counts[device].allocated);
    tell(told.reserved_bytes, counts[device].reserved);
    return told;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override {
    std::lock_guard<std::recursive_mutex> order(enqueueing);
    auto& count = counts[device];
    for (Statistics* each : {&count.requested, &count.allocated, &count.reserved}) each->peak = each->now;
  }
};
inline Allocator allocator;

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    void* memory = size ? take(size, kPinned) : nullptr;
    return {memory, memory, &give, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give; }
  void copy_data(void* to, const void* from, std::size_t size) const override { std::memcpy(to, from, size); }
};
inline PinnedAllocator pinned_allocator;

}  // namespace sim
