// What must happen once on each device before something else, such as setting a kernel's attribute.
// Threads may run it at the same time: each returns after the action was done on its device.
// Host only.
#pragma once

#include <atomic>
#include <cstdint>

namespace dash {

class OncePerDevice {
 public:
  // Does `action` unless it was done on this device. Two threads may both do it, so that it must
  // be harmless twice; one that throws was not done.
  template <class Action>
  void run(int device, Action action) {
    bool const is_remembered = 0 <= device && device < kMaxDevices;
    uint64_t const bit = is_remembered ? uint64_t{1} << device : 0;
    if ((done_.load(std::memory_order_acquire) & bit) != 0) {
      return;
    }
    action();
    done_.fetch_or(bit, std::memory_order_release);
  }

 private:
  static constexpr int kMaxDevices = 64;  // later ones do it at every call
  std::atomic<uint64_t> done_{0};         // a bit a device
};

}  // namespace dash
