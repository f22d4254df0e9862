#include "model/mapped_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>

namespace se {
namespace {

constexpr int kSlots = 4096;

// Read by the signal handler, hence plain lock-free words. begin == 0: free.
struct Slot {
  std::atomic<uintptr_t> begin{0}, end{0};  // whole pages
  std::atomic<bool> torn{false};
};
static_assert(std::atomic<uintptr_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

Slot slots[kSlots];
uintptr_t page_bytes = 4096;
struct sigaction before;  // the handler that was there

// Async-signal-safe: atomics and system calls alone.
bool patch(uintptr_t address) {
  for (Slot& slot : slots) {
    const uintptr_t begin = slot.begin.load(std::memory_order_acquire);
    const uintptr_t end = slot.end.load(std::memory_order_relaxed);
    if (begin == 0 || address < begin || address >= end) continue;
    // A file that shrank is gone from here on, so one call serves the rest of the mapping.
    const uintptr_t from = address & ~(page_bytes - 1);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
    if (mmap(reinterpret_cast<void*>(from), end - from, PROT_READ, flags, -1, 0) == MAP_FAILED) return false;
    slot.torn.store(true, std::memory_order_release);
    return true;
  }
  return false;
}

void on_bus_error(int number, siginfo_t* info, void* context) {
  const int saved = errno;
  const bool ours = info->si_code > 0 && patch(reinterpret_cast<uintptr_t>(info->si_addr));
  errno = saved;
  if (ours) return;
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(number, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(number);
  } else {
    sigaction(number, &before, nullptr);    // the load faults again, and this time for good
    if (info->si_code <= 0) raise(number);  // sent, not faulted
  }
}

void install() {
  page_bytes = uintptr_t(sysconf(_SC_PAGESIZE));
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, &before);
}

}  // namespace

int guard_mapping(const uint8_t* data, int64_t bytes) {
  static std::once_flag once;
  std::call_once(once, install);
  static std::mutex mutex;  // between openers; the handler needs none
  const std::lock_guard lock(mutex);
  for (int i = 0; i < kSlots; ++i) {
    Slot& slot = slots[i];
    if (slot.begin.load(std::memory_order_relaxed) != 0) continue;
    const uintptr_t begin = reinterpret_cast<uintptr_t>(data);
    slot.torn.store(false, std::memory_order_relaxed);
    slot.end.store((begin + uintptr_t(bytes) + page_bytes - 1) & ~(page_bytes - 1),
                   std::memory_order_relaxed);
    slot.begin.store(begin, std::memory_order_release);
    return i;
  }
  return -1;
}

void unguard_mapping(int slot) { slots[slot].begin.store(0, std::memory_order_release); }

bool mapping_torn(int slot) { return slots[slot].torn.load(std::memory_order_acquire); }

}  // namespace se
