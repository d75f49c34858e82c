// What a process knows of its own memory.
#ifndef TESTS_SERVING_MEMORY_H_
#define TESTS_SERVING_MEMORY_H_

#include <malloc.h>

#include <fstream>
#include <string>

namespace serving {

// A line of /proc/self/status in KiB: "VmRSS" is the memory in use now, "VmHWM" the most that ever was.
inline long StatusKib(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string name; status >> name; status.ignore(1 << 16, '\n')) {
    long kib;
    if (name == field + ":" && status >> kib) return kib;
  }
  return -1;
}

// From now on VmHWM is the most since now. Where the system does not allow it, it stays the most ever.
inline void ForgetPeak() { std::ofstream("/proc/self/clear_refs") << "5"; }

// Memory in use, without what has been freed and is kept for what comes next.
inline long ResidentKib() {
  malloc_trim(0);
  return StatusKib("VmRSS");
}

}  // namespace serving

#endif  // TESTS_SERVING_MEMORY_H_
