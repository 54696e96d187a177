// SPDX-License-Identifier: Apache-2.0
// The instruction sets that kernels are compiled for, and which of them runs. Knows no kernel: a
// family of kernels adds itself to every level by one line, see `compiled`.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include "ops/types.hpp"

namespace anybit {

// What each level needs of the processor stands in levels.cpp, its compiler flags in
// CMakeLists.txt.
enum class Level : std::uint8_t {
  baseline,
#ifdef ANYBIT_ARM_KERNELS
  dotprod,
// No table has the levels of other processors.
#endif
  avx2,
  avx512,
  // Further instructions for integers: what gains nothing by them is not compiled again.
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

// Whose kernels serve a level where only vectors of floating-point numbers matter.
constexpr Level without_integer_extensions(Level level) {
#ifdef ANYBIT_ARM_KERNELS
  if (level == Level::dotprod) return Level::baseline;
#endif
  return level == Level::avxvnni ? Level::avx2 : level > Level::avx512 ? Level::avx512 : level;
}

// Whose loops serve a level, where these name no instructions: they differ only by the vectors that
// a compiler makes of them.
constexpr Level of_loops([[maybe_unused]] Level level) {
#ifdef ANYBIT_PLAIN_LOOPS
  return Level::baseline;
#else
  return without_integer_extensions(level);
#endif
}

std::string_view name_of(Level level);

// The level in use: the best one this processor runs, or what ANYBIT_ISA names. Throws Error if
// that is unknown or cannot run here.
Level selected_level();

// The level for loops over a tensor: the one in use, or a narrower one for few elements, unless a
// level was named.
Level level_for(const Tensor& tensor);

// Use another level from now on. Throws Error for one that is unknown or that cannot run here.
void select_level(std::string_view name);

// The kernels of one family for one level. Each family is a type whose object holds its kernels'
// addresses; the file that is compiled once per level specializes this for Level::ANYBIT_ISA. A
// family that has no kernels of its own for some levels says whose serve them, in
// `static constexpr Level serving(Level)`.
template <class Family, Level level>
const Family& compiled();

// The kernels of a family for a level.
template <class Family>
const Family& kernels_of(Level level) {
  static constexpr auto all = []<int... each>(std::integer_sequence<int, each...>) {
    const auto serving = [](Level level) {
      if constexpr (requires { Family::serving(level); }) return Family::serving(level);
      else return level;
    };
    return std::array{&compiled<Family, serving(Level{each})>...};
  }(std::make_integer_sequence<int, level_count>{});
  return all[static_cast<std::size_t>(level)]();
}

}  // namespace anybit
