// SPDX-License-Identifier: Apache-2.0
#include "levels.hpp"

#include <atomic>
#include <cstdlib>
#include <string>

#include "ops/types.hpp"

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

Level first_choice() {
  if (const char* wanted = std::getenv("ANYBIT_ISA"); wanted != nullptr && *wanted != '\0')
    return find(wanted);
  for (const Row& row : levels)
    if (row.runs_here()) return row.level;
  throw Error(Error::Kind::value, "this processor lacks SSE4.2, which anybit needs");
}

constexpr int undecided = -1;
std::atomic<int> chosen{undecided};

}  // namespace

std::string_view name_of(Level level) {
  for (const Row& row : levels)
    if (row.level == level) return row.name;
  return "";
}

Level selected_level() {
  int level = chosen.load(std::memory_order_relaxed);
  if (level == undecided) {
    level = static_cast<int>(first_choice());
    chosen.store(level, std::memory_order_relaxed);
  }
  return static_cast<Level>(level);
}

void select_level(std::string_view name) { chosen.store(static_cast<int>(find(name))); }

}  // namespace anybit
