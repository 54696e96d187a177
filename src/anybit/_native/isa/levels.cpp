// SPDX-License-Identifier: Apache-2.0
#include "levels.hpp"

#ifdef ANYBIT_X86_KERNELS
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif
#ifdef ANYBIT_ARM_KERNELS
#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#endif

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>

#include "tiles.hpp"

namespace anybit {

namespace {

struct Row {
  Level level;
  std::string_view name;
  bool (*runs_here)();  // whether the processor supports the level
};

// Best first.
#ifdef ANYBIT_X86_KERNELS
#if !defined(__GNUC__)
#error "read the features of the processor with this compiler's intrinsics"
#endif
// Read from the processor: compiler builtins are always false with Zig's linker.
struct Registers {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(unsigned leaf, unsigned part = 0) {
  Registers registers;
  __get_cpuid_count(leaf, part, &registers.eax, &registers.ebx, &registers.ecx, &registers.edx);
  return registers;
}

bool has(unsigned word, auto... bits) {
  const unsigned all = ((1u << bits) | ...);
  return (word & all) == all;
}

// Registers that the system saves on context switches.
unsigned kept_registers() {
  if (!has(cpuid(1).ecx, 27)) return 0;
  unsigned low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

// SSE4.2 and POPCNT, which all processors with it have.
bool has_baseline() { return has(cpuid(1).ecx, 20, 23); }

// AVX2 with fused multiplications, which nearly all processors with it have.
bool has_avx2() {
  return has_baseline() && has(kept_registers(), 1, 2) && has(cpuid(1).ecx, 12, 28) &&
         has(cpuid(7).ebx, 5);
}

bool has_avx512() {
#if defined(__APPLE__)
  constexpr bool kept = true;  // enabled on first use
#else
  const bool kept = has(kept_registers(), 5, 6, 7);
#endif
  return kept && has_avx2() && has(cpuid(7).ebx, 16, 17, 30, 31);  // F, DQ, BW, VL
}

bool has_avxvnni() { return has_avx2() && has(cpuid(7, 1).eax, 4); }

bool has_avx512vnni() { return has_avx512() && has(cpuid(7).ecx, 11); }

// VNNI with VPOPCNTDQ and VBMI.
bool has_avx512vpopcnt() { return has_avx512vnni() && has(cpuid(7).ecx, 1, 14); }

// AMX tiles and their byte products.
bool has_amx() { return has_avx512vpopcnt() && has(cpuid(7).edx, 24, 25); }

constexpr Row levels[] = {
    {Level::amx, "amx", has_amx},
    {Level::avx512vpopcnt, "avx512vpopcnt", has_avx512vpopcnt},
    {Level::avx512vnni, "avx512vnni", has_avx512vnni},
    {Level::avx512, "avx512", has_avx512},
    {Level::avxvnni, "avxvnni", has_avxvnni},
    {Level::avx2, "avx2", has_avx2},
    {Level::baseline, "baseline", has_baseline},
};
#elif defined(ANYBIT_ARM_KERNELS)
bool has_dotprod() {
#if defined(__linux__)
  constexpr unsigned long dot_products = 1ul << 20;  // HWCAP_ASIMDDP
  return (getauxval(AT_HWCAP) & dot_products) != 0;
#elif defined(__APPLE__)
  int has = 0;
  std::size_t size = sizeof has;
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, nullptr, 0) == 0 && has != 0;
#else
  return false;
#endif
}

constexpr Row levels[] = {
    {Level::dotprod, "dotprod", has_dotprod},
    {Level::baseline, "baseline", [] { return true; }},  // NEON
};
#else
constexpr Row levels[] = {{Level::baseline, "baseline", [] { return true; }}};
#endif
static_assert(std::size(levels) == level_count);

Level find(std::string_view name) {
  std::string names;
  for (const Row& row : levels) {
    if (row.name == name) {
      if (row.runs_here() && (row.level != Level::amx || gets_tiles())) return row.level;
      throw Error(Error::Kind::value,
                  "this processor cannot run the instruction set " + quoted(name));
    }
    names.append(names.empty() ? "" : ", ").append(row.name);
  }
  throw Error(Error::Kind::value,
              "the instruction set (ANYBIT_ISA) must be one of " + names + ", got " + quoted(name));
}

// A level, and the level for few elements.
// Aligned so that Clang, too, loads and stores both at once without a library.
struct alignas(2) Choice {
  Level level;
  Level for_few;
};

// Processors power up the upper half of 512-bit registers when it is used after a pause. This takes
// longer than narrower loops need for few elements.
constexpr std::int64_t few = 4096;

constexpr Level undecided{UINT8_MAX};  // above all others

Level best_below(Level limit) {
  for (const Row& row : levels)
    if (row.level <= limit && row.runs_here()) return row.level;
  throw Error(Error::Kind::value, "this processor lacks SSE4.2, which anybit needs");
}

Choice first_choice() {
  if (const char* name = std::getenv("ANYBIT_ISA"); name != nullptr && *name != '\0') {
    const Level level = find(name);
    return {level, level};
  }
  return {best_below(undecided), best_below(Level::avx2)};
}

std::atomic<Choice> chosen{Choice{undecided, undecided}};

Choice choice() {
  Choice current = chosen.load(std::memory_order_relaxed);
  if (current.level == undecided) {
    current = first_choice();
    chosen.store(current, std::memory_order_relaxed);
  }
  return current;
}

}  // namespace

bool gets_tiles() {
#if defined(ANYBIT_X86_KERNELS) && defined(__linux__)
  constexpr long ask = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, ask, tile_data) == 0;
#else
  return false;
#endif
}

std::string_view name_of(Level level) {
  for (const Row& row : levels)
    if (row.level == level) return row.name;
  return "";
}

Level selected_level() { return choice().level; }

Level level_for(const Tensor& tensor) {
  const Choice current = choice();
  std::int64_t elements = 1;
  for (int i = 0; i < tensor.rank && elements < few; ++i)
    elements *= std::min(tensor.shape[i], few);
  return elements < few ? current.for_few : current.level;
}

void select_level(std::string_view name) {
  const Level level = find(name);
  chosen.store({level, level});
}

}  // namespace anybit
