// SPDX-License-Identifier: Apache-2.0
// ISA levels that kernels are compiled for, and their selection. Independent of the kernels: a
// kernel family registers itself at a level with one line, see `compiled`.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include "ops/types.hpp"

namespace anybit {

// Processor features of a level are in levels.cpp, its compiler flags in CMakeLists.txt.
enum class Level : std::uint8_t {
  baseline,
#ifdef ANYBIT_ARM_KERNELS
  dotprod,
// Levels of other processors are not in any table.
#endif
  avx2,
  avx512,
  // Levels that add integer instructions: only kernels that use these are compiled again.
  avxvnni,
  avx512vnni,
  avx512vpopcnt,
  amx,
};
#ifdef ANYBIT_X86_KERNELS
inline constexpr int level_count = 7;
#elif defined(ANYBIT_ARM_KERNELS)
inline constexpr int level_count = 2;
#else
inline constexpr int level_count = 1;
#endif

// Level whose kernels serve a level if integer instructions do not matter.
constexpr Level without_integer_extensions(Level level) {
#ifdef ANYBIT_ARM_KERNELS
  if (level == Level::dotprod) return Level::baseline;
#endif
  return level == Level::avxvnni ? Level::avx2 : level > Level::avx512 ? Level::avx512 : level;
}

// Level whose loops serve a level, for loops without intrinsics: they differ only by automatic
// vectorization.
constexpr Level of_loops([[maybe_unused]] Level level) {
#ifdef ANYBIT_PLAIN_LOOPS
  return Level::baseline;
#else
  return without_integer_extensions(level);
#endif
}

std::string_view name_of(Level level);

// Level in use: the best one of this processor, or the value of ANYBIT_ISA. Throws Error if that is
// unknown or unsupported here.
Level selected_level();

// Level for loops over a tensor: the one in use, or a narrower one for few elements, unless a level
// is set explicitly.
Level level_for(const Tensor& tensor);

// Sets the level in use. Throws Error if it is unknown or unsupported here.
void select_level(std::string_view name);

// Kernels of a family for a level. A family is a type whose object holds the addresses of its
// kernels; the file that is compiled once per level specializes this for Level::ANYBIT_ISA. For
// levels without kernels of their own, a family declares the serving level in `static constexpr
// Level serving(Level)`.
template <class Family, Level level>
const Family& compiled();

// Returns the kernels of a family for a level.
template <class Family>
const Family& kernels_of(Level level) {
  static constexpr auto all = []<int... levels>(std::integer_sequence<int, levels...>) {
    const auto serving = [](Level level) {
      if constexpr (requires { Family::serving(level); }) return Family::serving(level);
      else return level;
    };
    return std::array{&compiled<Family, serving(Level{levels})>...};
  }(std::make_integer_sequence<int, level_count>{});
  return all[static_cast<std::size_t>(level)]();
}

}  // namespace anybit
