// SPDX-License-Identifier: Apache-2.0
#include "levels.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>

namespace anybit {

namespace {

struct Row {
  Level level;
  std::string_view name;
  bool (*runs_here)();  // whether the processor has what the objects are compiled for
};

// Best first.
#ifdef ANYBIT_X86_KERNELS
#if !defined(__GNUC__)
#error "tell the features of the processor with this compiler's intrinsics"
#endif
constexpr Row levels[] = {
    {Level::avx512, "avx512",
     [] {
       return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
     }},
    {Level::avx2, "avx2", [] { return __builtin_cpu_supports("avx2") != 0; }},
    {Level::baseline, "baseline", [] { return __builtin_cpu_supports("sse4.2") != 0; }},
};
#else
constexpr Row levels[] = {{Level::baseline, "baseline", [] { return true; }}};
#endif
static_assert(std::size(levels) == level_count);

Level find(std::string_view wanted) {
  std::string names;
  for (const Row& row : levels) {
    if (row.name == wanted) {
      if (row.runs_here()) return row.level;
      throw Error(Error::Kind::value,
                  "this processor cannot run the instruction set " + quoted(wanted));
    }
    names.append(names.empty() ? "" : ", ").append(row.name);
  }
  throw Error(Error::Kind::value, "the instruction set (ANYBIT_ISA) must be one of " + names +
                                      ", got " + quoted(wanted));
}

// A level, and the one for few elements.
struct Choice {
  Level level;
  Level for_few;
};

// Processors switch the upper half of 512-bit registers on when it is used after a pause, which
// takes longer than the narrower loops need for few elements.
constexpr std::int64_t few = 4096;

Level best_below(Level limit) {
  for (const Row& row : levels)
    if (row.level <= limit && row.runs_here()) return row.level;
  throw Error(Error::Kind::value, "this processor lacks SSE4.2, which anybit needs");
}

Choice first_choice() {
  if (const char* wanted = std::getenv("ANYBIT_ISA"); wanted != nullptr && *wanted != '\0') {
    const Level level = find(wanted);
    return {level, level};
  }
  return {best_below(Level::avx512), best_below(Level::avx2)};
}

constexpr Choice undecided{Level{UINT8_MAX}, Level{UINT8_MAX}};
std::atomic<Choice> chosen{undecided};

Choice choice() {
  Choice found = chosen.load(std::memory_order_relaxed);
  if (found.level == undecided.level) {
    found = first_choice();
    chosen.store(found, std::memory_order_relaxed);
  }
  return found;
}

}  // namespace

std::string_view name_of(Level level) {
  for (const Row& row : levels)
    if (row.level == level) return row.name;
  return "";
}

Level selected_level() { return choice().level; }

Level level_for(const Tensor& tensor) {
  const Choice found = choice();
  std::int64_t elements = 1;
  for (int i = 0; i < tensor.rank && elements < few; ++i)
    elements *= std::min(tensor.shape[i], few);
  return elements < few ? found.for_few : found.level;
}

void select_level(std::string_view name) {
  const Level level = find(name);
  chosen.store({level, level});
}

}  // namespace anybit
