// SPDX-License-Identifier: Apache-2.0
// Which instruction set's loops run: the best this processor has, or what ANYBIT_ISA asks for.
#include <atomic>
#include <cstdlib>
#include <string>

#include "kernels.hpp"

namespace anybit {

namespace baseline {
extern const KernelSet kernel_set;
}
#ifdef ANYBIT_X86_KERNELS
namespace avx2 {
extern const KernelSet kernel_set;
}
namespace avx512 {
extern const KernelSet kernel_set;
}
#endif

namespace {

struct Candidate {
  const KernelSet* set;
  bool (*runs_here)();
};

#ifdef ANYBIT_X86_KERNELS
#if defined(__GNUC__)
// What the objects are compiled for: see CMakeLists.txt.
bool has_avx2() { return __builtin_cpu_supports("avx2"); }
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
bool has_baseline() { return __builtin_cpu_supports("sse4.2"); }
#else
#error "tell the features of the processor with this compiler's intrinsics"
#endif
// Best first.
const Candidate candidates[] = {{&avx512::kernel_set, has_avx512},
                                {&avx2::kernel_set, has_avx2},
                                {&baseline::kernel_set, has_baseline}};
#else
const Candidate candidates[] = {{&baseline::kernel_set, [] { return true; }}};
#endif

const KernelSet& find(std::string_view wanted) {
  std::string names;
  for (const Candidate& candidate : candidates) {
    if (candidate.set->name == wanted) {
      if (candidate.runs_here()) return *candidate.set;
      throw Error(Error::Kind::value,
                  "this processor cannot run the instruction set " + quoted(wanted));
    }
    names.append(names.empty() ? "" : ", ").append(candidate.set->name);
  }
  throw Error(Error::Kind::value, "the instruction set (ANYBIT_ISA) must be one of " + names +
                                      ", got " + quoted(wanted));
}

const KernelSet& first_choice() {
  if (const char* wanted = std::getenv("ANYBIT_ISA"); wanted != nullptr && *wanted != '\0')
    return find(wanted);
  for (const Candidate& candidate : candidates)
    if (candidate.runs_here()) return *candidate.set;
  throw Error(Error::Kind::value, "this processor lacks SSE4.2, which anybit needs");
}

std::atomic<const KernelSet*> chosen{nullptr};

}  // namespace

const KernelSet& kernels() {
  const KernelSet* set = chosen.load(std::memory_order_relaxed);
  if (set == nullptr) {
    set = &first_choice();
    chosen.store(set, std::memory_order_relaxed);
  }
  return *set;
}

void select_kernels(std::string_view name) { chosen.store(&find(name)); }

std::string_view selected_kernels() { return kernels().name; }

}  // namespace anybit
