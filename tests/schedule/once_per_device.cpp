// Exits with 0 if OncePerDevice does its action on each device before anybody goes on, seldom more
// than once, and again if it threw.
#include "common/once_per_device.hpp"

#include <array>
#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

namespace {

constexpr int kDevices = 64;
constexpr int kThreads = 8;

bool is_done_before_anybody_goes_on() {
  dash::OncePerDevice once;
  std::array<std::atomic<int>, kDevices> done{};
  std::atomic<bool> is_right = true;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&] {
      for (int call = 0; call < 100 * kDevices; ++call) {
        int const device = call % kDevices;
        once.run(device, [&] { ++done[device]; });
        is_right = is_right && done[device] > 0;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (std::atomic<int> const& count : done) {
    is_right = is_right && count <= kThreads;
  }
  return is_right;
}

int times_done(int device, int calls) {
  dash::OncePerDevice once;
  int times = 0;
  for (int call = 0; call < calls; ++call) {
    once.run(device, [&] { ++times; });
  }
  return times;
}

bool is_tried_again_after_a_throw() {
  dash::OncePerDevice once;
  try {
    once.run(1, [] { throw std::runtime_error("not done"); });
  } catch (std::runtime_error const&) {
  }
  int times = 0;
  once.run(1, [&] { ++times; });
  return times == 1;
}

}  // namespace

int main() {
  bool const is_once = times_done(0, 3) == 1 && times_done(63, 3) == 1;
  bool const is_each_time = times_done(64, 3) == 3 && times_done(-1, 3) == 3;
  bool const is_right = is_once && is_each_time && is_tried_again_after_a_throw() &&
                        is_done_before_anybody_goes_on();
  return is_right ? 0 : 1;
}
