// Streams as threads, events, and a checker of what is ordered with what.
//
// A stream is a thread with a queue. All that is enqueued is done in its order, some time later.
// The checker keeps a vector clock per stream and one for the host, in the order in which the host
// enqueues: two uses of a block of memory, one of them a write, must be ordered by a stream, an
// event or the host's waiting. It does not matter which of them comes first in fact, so what it
// finds does not depend on luck.
#pragma once
#include <Python.h>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace sim {

using Time = std::chrono::steady_clock;
constexpr int kDevices = 2;
constexpr int kStreamsEach = 12;                     // of one device; number 0 is its default
constexpr int kStreams = kDevices * kStreamsEach;
using Clock = std::array<uint64_t, kStreams>;        // how far each stream is known to be

inline void join(Clock& known, const Clock& more) {
  for (int i = 0; i < kStreams; i++) known[i] = std::max(known[i], more[i]);
}

// ------------------------------------------------------------------------------ settings, findings
struct Settings {
  std::atomic<double> bytes_per_s{0};                // of transfers; 0: as fast as memory
  std::atomic<double> kernel_us{0};                  // that each kernel takes longer
  std::atomic<int64_t> capacity{int64_t(1) << 40};   // bytes of each device
};
inline Settings settings;

struct Findings {
  std::mutex mutex;
  std::vector<std::string> races;
  std::map<std::string, int64_t> host_waits;         // how often, by what made the host wait
  void race(const std::string& text) {
    std::lock_guard<std::mutex> lock(mutex);
    if (races.size() < 1000) races.push_back(text);
  }
  void host_wait(const std::string& why) {
    std::lock_guard<std::mutex> lock(mutex);
    host_waits[why]++;
  }
};
inline Findings findings;

// ------------------------------------------------------------------------------ streams
inline std::recursive_mutex enqueueing;              // one order of all that any thread enqueues
inline Clock host_clock{};                           // what the host has waited for

class Stream {
 public:
  Clock clock{};
  void push(std::function<void()> work) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    queue_.push_back(std::move(work));
    put_++;
    changed_.notify_all();
  }
  uint64_t put() { std::lock_guard<std::mutex> lock(mutex_); return put_; }
  uint64_t done() { std::lock_guard<std::mutex> lock(mutex_); return done_; }
  void drain() {
    std::unique_lock<std::mutex> lock(mutex_);
    auto until = put_;
    changed_.wait(lock, [&] { return done_ >= until; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  uint64_t put_ = 0, done_ = 0;
  std::thread thread_;
  void run() {
    for (;;) {
      std::function<void()> work;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return !queue_.empty(); });
        work = std::move(queue_.front());
        queue_.pop_front();
      }
      try { work(); }
      catch (const std::exception& error) { findings.race(std::string("a kernel failed: ") + error.what()); }
      work = nullptr;
      std::lock_guard<std::mutex> lock(mutex_);
      done_++;
      changed_.notify_all();
    }
  }
};
inline Stream* streams() {                           // never deleted: its threads outlive main()
  static auto* all = new Stream[kStreams];
  return all;
}

inline thread_local int current_device = 0;
inline thread_local std::array<int, kDevices> current_streams{};  // numbers within each device
inline int current_stream() { return current_device * kStreamsEach + current_streams[current_device]; }
inline std::atomic<int> streams_made{0};

struct WithoutGil {                                  // the host waits, and others may run Python
  PyThreadState* state = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
  ~WithoutGil() { if (state) PyEval_RestoreThread(state); }
};
inline void host_has_seen(const Clock& clock) {
  std::lock_guard<std::recursive_mutex> lock(enqueueing);
  join(host_clock, clock);
}
inline void wait_for_stream(int stream, const std::string& why) {
  findings.host_wait(why);
  Clock clock;
  { std::lock_guard<std::recursive_mutex> lock(enqueueing); clock = streams()[stream].clock; }
  { WithoutGil free; streams()[stream].drain(); }
  host_has_seen(clock);
}

// ------------------------------------------------------------------------------ events
struct Event {                                       // may be recorded again: then a new version
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0, reached = 0;
  Clock clock{};
  Time::time_point at;
};
inline void record(Event* event, int stream) {
  std::lock_guard<std::recursive_mutex> order(enqueueing);
  uint64_t version;
  { std::lock_guard<std::mutex> lock(event->mutex); version = ++event->recorded; }
  join(streams()[stream].clock, host_clock);
  event->clock = streams()[stream].clock;
  streams()[stream].push([event, version] {
    std::lock_guard<std::mutex> lock(event->mutex);
    event->reached = std::max(event->reached, version);
    event->at = Time::now();
    event->changed.notify_all();
  });
}
inline void wait_on_stream(Event* event, int stream) {
  std::lock_guard<std::recursive_mutex> order(enqueueing);
  uint64_t version;
  { std::lock_guard<std::mutex> lock(event->mutex); version = event->recorded; }
  join(streams()[stream].clock, event->clock);
  streams()[stream].push([event, version] {
    std::unique_lock<std::mutex> lock(event->mutex);
    event->changed.wait(lock, [&] { return event->reached >= version; });
  });
}
inline void wait_on_host(Event* event) {
  findings.host_wait("event.synchronize");
  Clock clock;
  { std::lock_guard<std::recursive_mutex> order(enqueueing); clock = event->clock; }
  {
    WithoutGil free;
    std::unique_lock<std::mutex> lock(event->mutex);
    auto version = event->recorded;
    event->changed.wait(lock, [&] { return event->reached >= version; });
  }
  host_has_seen(clock);
}

}  // namespace sim
