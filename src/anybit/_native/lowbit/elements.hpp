// SPDX-License-Identifier: Apache-2.0
// Loops over the elements of a line, compiled once per level of instructions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "_native/isa/levels.hpp"

namespace anybit::lowbit {

// How a float32 becomes an index: by the thresholds that it reaches, which a guess can spare.
// A guess is proven for every float32 but NaN before it is used, see quantizer.cpp.
struct Levels {
  enum class Way : std::uint8_t {
    count,    // compare with each threshold
    guess,    // rint(clamp(x * gain + offset)), which is right
    divide,   // rint(clamp(x / gain)), which is right
    correct,  // as `guess`, which is one off at most, and only where it rounds by `limit` or more
    search,   // halve the thresholds
  };
  Way way = Way::search;
  int levels = 0;
  bool falls = false;  // index = levels - 1 - count
  float gain = 0, offset = 0, lowest = 0, limit = 0;
  // A number below which nothing is, the thresholds in ascending order, and NaN, which nothing
  // reaches, up to a power of two. Whoever made it owns them.
  const float* thresholds = nullptr;
};

// Windows of so many lines and elements each, which lie within a tensor; sizes are in bytes.
struct WindowRow {
  const std::byte* from = nullptr;  // the first element of the first window
  std::int64_t lines = 1, elements = 1;
  std::int64_t line = 0, element = 0;    // from one to the next
  std::int64_t windows = 1, stride = 0;  // their number, and from one to the next
  std::int64_t pixel = 0;
};

// index = rint(y / divisor + offset) + shift, after it was brought between the bounds; NaN is the
// lower one. y is the sum or the product of first * gain and second * other gain, where first and
// second are indices less the zero of each.
struct PairArithmetic {
  std::int32_t zero = 0, other_zero = 0;
  float gain = 0, other_gain = 0, offset = 0, divisor = 1, lowest = 0, highest = 0;
  std::int32_t shift = 0;
};

struct ElementLoops {
  static constexpr Level serving(Level level) { return without_integer_extensions(level); }

  // The indices of n numbers; whether one of them is NaN, whose index is any then.
  bool (*indices)(const Levels& levels, const float* x, std::int64_t n, std::uint8_t* to);

  // The indices as bits, for 2 levels, or as planes, for up to 4; bits behind the last one are 0.
  // Whether a number is NaN.
  bool (*bits)(const Levels& levels, const float* x, std::int64_t n, std::byte* to);
  bool (*planes)(const Levels& levels, const float* x, std::int64_t n, std::byte* to);

  // The largest indices of windows that lie side by side, in each coding.
  void (*largest)(const WindowRow& windows, std::byte* to);
  void (*either)(const WindowRow& windows, std::byte* to);
  void (*largest_planes)(const WindowRow& windows, std::byte* to);

  // to[i] = table[from[i]]; the table of bytes has 256 entries.
  void (*lookup)(const std::uint8_t* table, const std::uint8_t* from, std::int64_t n,
                 std::uint8_t* to);
  void (*values)(const float* table, const std::uint8_t* from, std::int64_t n, float* to);

  // to[i] = table[first[i] * levels + second[i]]
  void (*combine)(const std::uint8_t* table, std::int32_t levels, const std::uint8_t* first,
                  const std::uint8_t* second, std::int64_t n, std::uint8_t* to);

  void (*add)(const PairArithmetic& sum, const std::uint8_t* first, const std::uint8_t* second,
              std::int64_t n, std::uint8_t* to);
  void (*multiply)(const PairArithmetic& product, const std::uint8_t* first,
                   const std::uint8_t* second, std::int64_t n, std::uint8_t* to);
};

}  // namespace anybit::lowbit
