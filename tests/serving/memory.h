// The memory that this process uses.
#ifndef TESTS_SERVING_MEMORY_H_
#define TESTS_SERVING_MEMORY_H_

#include <malloc.h>

#include <fstream>
#include <string>

namespace serving {

// A line of /proc/self/status in KiB: "VmRSS" is the memory in use now, "VmHWM" its peak.
inline long StatusKib(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string name; status >> name; status.ignore(1 << 16, '\n')) {
    long kib;
    if (name == field + ":" && status >> kib) return kib;
  }
  return -1;
}

// Resets the peak. If the system does not allow that, VmHWM remains the peak since the start.
inline void ForgetPeak() { std::ofstream("/proc/self/clear_refs") << "5"; }

// Memory in use, without freed memory that the allocator keeps for later.
inline long ResidentKib() {
  malloc_trim(0);
  return StatusKib("VmRSS");
}

}  // namespace serving

#endif  // TESTS_SERVING_MEMORY_H_
