// SPDX-License-Identifier: Apache-2.0
#if defined(__GNUC__) && !defined(__clang__)
// GCC's own headers start some intrinsics from a vector that is undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "elements.hpp"

#include <cstring>

#include "_native/isa/levels.hpp"
#include "byte_permutation.hpp"
#include "dynamic_lines.hpp"
#include "float_pixels.hpp"
#include "float_rows.hpp"
#include "lookup.hpp"
#include "threshold_packer.hpp"
#if defined(__AVX2__)
#include "packed_quantizer.hpp"
#define ANYBIT_PACKS_NUMBERS
#endif
#if defined(__AVX2__) && !defined(__AVX512F__)
#include "pairs_avx2.hpp"
#define ANYBIT_PACKS_PAIRS
#endif

// Compiled once per level: what is called here is local or forced inline.
namespace anybit::lowbit {
namespace {

// Elements per block.
constexpr std::int64_t batch = 256;

void count(const ThresholdMap& map, const float* x, std::int64_t n, std::uint8_t* to) {
  for (std::int64_t done = 0; done < n; done += batch) {
    const std::int64_t here = n - done < batch ? n - done : batch;
    std::int32_t sums[batch] = {};
    for (int k = 1; k < map.index_count; ++k) {
      const float threshold = map.thresholds[k];
      for (std::int64_t i = 0; i < here; ++i) sums[i] += x[done + i] >= threshold ? 1 : 0;
    }
    for (std::int64_t i = 0; i < here; ++i) to[done + i] = static_cast<std::uint8_t>(sums[i]);
  }
}

// Adding and subtracting this number rounds to an integer, half to even.
constexpr float rounder = 12582912.0f;

template <bool divides>
struct Guess {
  explicit Guess(const ThresholdMap& map)
      : gain(map.gain),
        offset(map.offset),
        lowest(map.lowest),
        highest(map.lowest + static_cast<float>(map.index_count - 1)) {}

  float inside(float x) const {
    float y = (divides ? x / gain : x * gain) + offset;
    y = y > lowest ? y : lowest;  // NaN becomes the lowest
    return y < highest ? y : highest;
  }
  std::int32_t operator()(float x) const {
    return static_cast<std::int32_t>(((inside(x) + rounder) - rounder) - lowest);
  }

  float gain, offset, lowest, highest;
};

template <bool divides>
void compute_affine(const ThresholdMap& map, const float* x, std::int64_t n, std::uint8_t* to) {
  const Guess<divides> index(map);
  for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<std::uint8_t>(index(x[i]));
}

// Computes indices; returns whether a rounding error reaches the limit, so that one may be wrong.
bool compute_approximate(const ThresholdMap& map, const float* x, std::int64_t n,
                         std::uint8_t* to) {
  const Guess<false> index(map);
  const float limit = map.limit;
  std::int32_t doubtful = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const float y = index.inside(x[i]), rounded = (y + rounder) - rounder;
    const float off = y - rounded;
    to[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(rounded - index.lowest));
    doubtful |= static_cast<std::int32_t>(off >= limit) | static_cast<std::int32_t>(-off >= limit);
  }
  return doubtful != 0;
}

void correct_all(const ThresholdMap& map, const float* x, std::int64_t n, std::uint8_t* to) {
  const float* const thresholds = map.thresholds;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int32_t first = to[i];
    // Comparisons with NaN are false: the index stays valid, and NaN is detected separately.
    const std::int32_t below = x[i] < thresholds[first] ? 1 : 0;
    const std::int32_t above = x[i] >= thresholds[first + 1] ? 1 : 0;
    to[i] = static_cast<std::uint8_t>(first - below + above);
  }
}

void correct(const ThresholdMap& map, const float* x, std::int64_t n, std::uint8_t* to) {
  constexpr std::int64_t few = 64;
  for (std::int64_t done = 0; done < n; done += few) {
    const std::int64_t here = n - done < few ? n - done : few;
    if (compute_approximate(map, x + done, here, to + done))
      correct_all(map, x + done, here, to + done);
  }
}

void search(const ThresholdMap& map, const float* x, std::int64_t n, std::uint8_t* to) {
  const float* const thresholds = map.thresholds;
  int half = 1;
  while (half < map.index_count) half *= 2;
  half /= 2;
  for (std::int64_t i = 0; i < n; ++i) {
    std::int32_t index = 0;
    for (int step = half; step > 0; step /= 2) index += x[i] >= thresholds[index + step] ? step : 0;
    to[i] = static_cast<std::uint8_t>(index);
  }
}

// Computes indices before they are flipped; returns whether a number is NaN.
bool increasing_indices(const ThresholdMap& map, const float* x, std::int64_t n, std::uint8_t* to) {
#if defined(ANYBIT_PACKS_NUMBERS)
  const auto correct_some = [&](const float* from, std::int64_t count, std::uint8_t* indices) {
    correct_all(map, from, count, indices);
  };
  using Method = ThresholdMap::Method;
  if (packs(map)) {
    if (map.method == Method::affine)
      return compute_packed<PackedQuantizer<Method::affine>>(map, x, n, to, correct_some);
    if (map.method == Method::divide && map.reciprocal > 0)
      return compute_packed<PackedQuantizer<Method::divide, true>>(map, x, n, to, correct_some);
    if (map.method == Method::divide)
      return compute_packed<PackedQuantizer<Method::divide>>(map, x, n, to, correct_some);
    if (map.method == Method::correct)
      return compute_packed<PackedQuantizer<Method::correct>>(map, x, n, to, correct_some);
  }
#endif
  switch (map.method) {
    case ThresholdMap::Method::count:
      count(map, x, n, to);
      break;
    case ThresholdMap::Method::affine:
      compute_affine<false>(map, x, n, to);
      break;
    case ThresholdMap::Method::divide:
      compute_affine<true>(map, x, n, to);
      break;
    case ThresholdMap::Method::correct:
      correct(map, x, n, to);
      break;
    case ThresholdMap::Method::search:
      search(map, x, n, to);
      break;
  }
  return has_nan(x, n);
}

bool indices(const ThresholdMap& map, const float* x, std::int64_t n, std::uint8_t* to) {
  const bool nan = increasing_indices(map, x, n, to);
  if (map.decreasing) {
    const auto last = static_cast<std::uint8_t>(map.index_count - 1);
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<std::uint8_t>(last - to[i]);
  }
  return nan;
}

struct LargestBytes {
  using Unit = std::uint8_t;
  Unit operator()(Unit a, Unit b) const { return a > b ? a : b; }
};

template <class Word>
struct Either {
  using Unit = Word;
  Unit operator()(Unit a, Unit b) const { return static_cast<Unit>(a | b); }
};

// Maximum of two words: low bits, then high bits.
struct LargestPlanes {
  using Unit = std::uint64_t;
  Unit operator()(Unit a, Unit b) const {
    const std::uint64_t a_high = a >> 32, b_high = b >> 32;
    // A low bit counts unless only the other number has the high bit.
    const std::uint64_t low = (a & (a_high | ~b_high)) | (b & (b_high | ~a_high));
    return (low & 0xffffffffu) | (a_high | b_high) << 32;
  }
};

// Reduces windows pixel by pixel. A pixel has `fixed` units; 0 means as many as at run time.
template <std::int64_t fixed, class Combine>
void pool(const WindowRow& row, std::byte* to, const Combine& combine) {
  using Unit = typename Combine::Unit;
  constexpr std::int64_t size = sizeof(Unit);
  const std::int64_t units = fixed > 0 ? fixed : row.pixel / size;
  for (std::int64_t window = 0; window < row.windows; ++window, to += row.pixel) {
    const std::byte* const first = row.from + window * row.stride;
    std::memcpy(to, first, static_cast<std::size_t>(units * size));
    for (std::int64_t y = 0; y < row.lines; ++y) {
      for (std::int64_t x = y == 0 ? 1 : 0; x < row.elements; ++x) {
        const std::byte* const from = first + y * row.line + x * row.element;
        for (std::int64_t i = 0; i < units; ++i) {
          Unit a, b;
          std::memcpy(&a, to + i * size, sizeof a);
          std::memcpy(&b, from + i * size, sizeof b);
          a = combine(a, b);
          std::memcpy(to + i * size, &a, sizeof a);
        }
      }
    }
  }
}

template <std::int64_t size>
using ByteRegister [[gnu::vector_size(size)]] = std::uint8_t;

// Largest bytes of windows, in registers. The last ones of a pixel may be computed twice.
template <std::int64_t size>
void max_pool_in_registers(const WindowRow& row, std::byte* to) {
  using Register = ByteRegister<size>;
  for (std::int64_t window = 0; window < row.windows; ++window, to += row.pixel) {
    const std::byte* const first = row.from + window * row.stride;
    for (std::int64_t done = 0; done < row.pixel; done += size) {
      const std::int64_t start = done + size > row.pixel ? row.pixel - size : done;
      Register most = {};
      for (std::int64_t y = 0; y < row.lines; ++y) {
        const std::byte* from = first + y * row.line + start;
        for (std::int64_t x = 0; x < row.elements; ++x, from += row.element) {
          Register here;
          std::memcpy(&here, from, sizeof here);
          most = most > here ? most : here;
        }
      }
      std::memcpy(to + start, &most, sizeof most);
    }
  }
}

void max_pool(const WindowRow& row, std::byte* to) {
#if defined(__AVX2__)
  if (row.pixel >= 32) return max_pool_in_registers<32>(row, to);
#endif
  if (row.pixel >= 16) return max_pool_in_registers<16>(row, to);
  if (row.pixel >= 8) return max_pool_in_registers<8>(row, to);
  pool<0>(row, to, LargestBytes());
}

void max_pool_bits(const WindowRow& row, std::byte* to) {
  if (row.pixel == 8) pool<1>(row, to, Either<std::uint64_t>());
  else if (row.pixel == 16) pool<2>(row, to, Either<std::uint64_t>());
  else pool<0>(row, to, Either<std::uint32_t>());
}

void max_pool_planes(const WindowRow& row, std::byte* to) { pool<0>(row, to, LargestPlanes()); }

// The same of nibbles with two low bits, then two high bits.
struct LargestNibbles {
  using Unit = std::uint64_t;
  Unit operator()(Unit a, Unit b) const {
    constexpr std::uint64_t lows = 0x3333333333333333u;
    const std::uint64_t a_high = a >> 2 & lows, b_high = b >> 2 & lows;
    const std::uint64_t low = (a & (a_high | ~b_high)) | (b & (b_high | ~a_high));
    return (low & lows) | (a_high | b_high) << 2;
  }
};

void max_pool_nibbles(const WindowRow& row, std::byte* to) { pool<0>(row, to, LargestNibbles()); }

void values(const float* table, const std::uint8_t* from, std::int64_t n, float* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = table[from[i]];
}

void scaled(const ScaledValues& values, const std::uint8_t* from, std::int64_t n, float* to) {
  const ScaledValues at = values;
  for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(from[i] - at.zero) * at.scale;
}

void combine(const std::uint8_t* table, std::int32_t levels, const std::uint8_t* first,
             const std::uint8_t* second, std::int64_t n, std::uint8_t* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = table[first[i] * levels + second[i]];
}

template <bool multiplies, bool divides>
void compute(const PairArithmetic& arithmetic, const std::uint8_t* first,
             const std::uint8_t* second, std::int64_t n, std::uint8_t* to) {
  const PairArithmetic a = arithmetic;
  for (std::int64_t i = 0; i < n; ++i) {
    const float x = static_cast<float>(first[i] - a.zero) * a.gain;
    const float other = static_cast<float>(second[i] - a.other_zero) * a.other_gain;
    float y = multiplies ? x * other : x + other;
    if constexpr (divides) y = y / a.divisor;
    y = y + a.offset;
    y = y > a.lowest ? y : a.lowest;  // NaN becomes the lowest
    y = y < a.highest ? y : a.highest;
    to[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>((y + rounder) - rounder) + a.shift);
  }
}

template <bool single, class Result>
void apply(const float* x, const float* c, std::int64_t n, float* to, const Result& result) {
  const float operand = *c;
  if (x == to) {
    float* __restrict const y = to;
    for (std::int64_t i = 0; i < n; ++i) y[i] = result(y[i], single ? operand : c[i]);
  } else {
    float* __restrict const y = to;
    for (std::int64_t i = 0; i < n; ++i) y[i] = result(x[i], single ? operand : c[i]);
  }
}

template <bool single>
void apply(Operation operation, const float* x, const float* c, std::int64_t n, float* to) {
  const auto apply_to_all = [&](const auto& result) { apply<single>(x, c, n, to, result); };
  switch (operation) {
    case Operation::add:
      return apply_to_all([](float y, float z) { return y + z; });
    case Operation::subtract:
      return apply_to_all([](float y, float z) { return y - z; });
    case Operation::subtract_from:
      return apply_to_all([](float y, float z) { return z - y; });
    case Operation::multiply:
      return apply_to_all([](float y, float z) { return y * z; });
    case Operation::divide:
      return apply_to_all([](float y, float z) { return y / z; });
    case Operation::maximum:
      return apply_to_all([](float y, float z) { return (y > z || y != y) ? y : z; });
    case Operation::minimum:
      return apply_to_all([](float y, float z) { return (y < z || y != y) ? y : z; });
    case Operation::sigmoid:
      return for_each_block(n, [&](std::int64_t i, int count) __attribute__((always_inline)) {
        write_some(to + i, sigmoid_of(read_some(x + i, count, 0.0f)), count);
      });
    case Operation::gelu:
      return for_each_block(n, [&](std::int64_t i, int count) __attribute__((always_inline)) {
        write_some(to + i, gelu_of(read_some(x + i, count, 0.0f)), count);
      });
    default:
      return;
  }
}

void arithmetic(Operation operation, const float* x, const float* c, bool single, std::int64_t n,
                float* to) {
  if (single) apply<true>(operation, x, c, n, to);
  else apply<false>(operation, x, c, n, to);
}

// Bits of float32 are ordered as integers. NaN is above infinity.
Magnitudes find_magnitudes(const float* x, std::int64_t n) {
  constexpr std::int32_t infinity = 0x7f800000, sign = -0x7fffffff - 1;
  std::int32_t above = 0, below = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    std::int32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    const std::int32_t negated = bits ^ sign;
    above = bits > above ? bits : above;
    below = negated > below ? negated : below;
  }
  if (above > infinity || below > infinity) above = below = infinity;
  Magnitudes result;
  std::memcpy(&result.above, &above, sizeof above);
  std::memcpy(&result.below, &below, sizeof below);
  return result;
}

template <bool multiplies>
void combine_pairs(const PairArithmetic& arithmetic, const std::uint8_t* first,
                   const std::uint8_t* second, std::int64_t n, std::uint8_t* to) {
#if defined(ANYBIT_PACKS_PAIRS)
  if (fits_32_bits(arithmetic, multiplies)) {
    const auto packed = arithmetic.divisor == 1 ? compute_packed<multiplies, false>
                                                : compute_packed<multiplies, true>;
    const std::int64_t done = packed(arithmetic, first, second, n, to);
    first += done, second += done, n -= done, to += done;
  }
#endif
  if (arithmetic.divisor == 1) compute<multiplies, false>(arithmetic, first, second, n, to);
  else compute<multiplies, true>(arithmetic, first, second, n, to);
}

}  // namespace
}  // namespace anybit::lowbit

namespace anybit {

template <>
const lowbit::ElementLoops& compiled<lowbit::ElementLoops, Level::ANYBIT_ISA>() {
  using namespace lowbit;
  static constexpr ElementLoops loops{indices,
                                      packed<1, Coding::bits>,
                                      two_bits<Coding::planes>,
                                      two_bits<Coding::nibbles>,
                                      max_pool,
                                      max_pool_bits,
                                      max_pool_planes,
                                      max_pool_nibbles,
                                      permute,
                                      lookup,
                                      values,
                                      scaled,
                                      combine,
                                      combine_pairs<false>,
                                      combine_pairs<true>,
                                      arithmetic,
                                      find_magnitudes,
                                      quantize,
                                      quantize_rows,
                                      quantize_column_panel,
                                      quantize_row_panel,
                                      scale_sums,
                                      softmax,
                                      normalize,
                                      add_pixels};
  return loops;
}

}  // namespace anybit
