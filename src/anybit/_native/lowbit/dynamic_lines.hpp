// SPDX-License-Identifier: Apache-2.0
// Codes of lines of a matrix by scales that follow from the lines. Several lines are computed side
// by side. Operations are those of dynamic_scale.hpp and of `DynamicLine`.
#pragma once

#include <limits>

#include "elements.hpp"
#include "float_rows.hpp"

namespace anybit::lowbit {
namespace {

static_assert(lines_together == lane_count);

// Adding this number rounds to an integer, half to even, in the lowest bits.
constexpr float raising = 12582912.0f;
constexpr std::int32_t raising_bits = 0x4b400000, magnitude_bits = 0x7fffffff;

[[gnu::always_inline]] inline Lanes largest(const Lanes& a, const Lanes& b) {
  return selected(a > b, a, b);
}

[[gnu::always_inline]] inline Reals reals_of(const Lanes& bits) {
  return map_registers<Reals>([&](int i) __attribute__((always_inline)) {
    return reinterpret_cast<FloatRegister>(bits.parts[i]);
  });
}

[[gnu::always_inline]] inline std::int32_t largest_lane(const Lanes& lanes) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_epi32(__m512i(lanes.parts[0]));
#elif defined(__SSE4_1__)
#if defined(__AVX2__)
  const __m256i both = _mm256_max_epi32(__m256i(lanes.parts[0]), __m256i(lanes.parts[1]));
  __m128i most = _mm_max_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
#else
  const auto part = [&](int i) __attribute__((always_inline)) { return __m128i(lanes.parts[i]); };
  __m128i most = _mm_max_epi32(_mm_max_epi32(part(0), part(1)), _mm_max_epi32(part(2), part(3)));
#endif
  most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(most, _mm_shuffle_epi32(most, 0xb1)));
#else
  std::int32_t all[lane_count], most;
  write(all, lanes);
  most = all[0];
  for (const std::int32_t lane : all) most = lane > most ? lane : most;
  return most;
#endif
}

// Writes 16 numbers that fit 16 bits.
[[gnu::always_inline]] inline void write_words(std::int16_t* to, const Lanes& lanes) {
#if defined(__AVX512F__)
  write(to, _mm512_cvtepi32_epi16(__m512i(lanes.parts[0])));
#elif defined(__AVX2__)
  const __m256i words = _mm256_packs_epi32(__m256i(lanes.parts[0]), __m256i(lanes.parts[1]));
  write(to, _mm256_permute4x64_epi64(words, 0xd8));
#elif defined(__SSE4_1__)
  repeat<2>([&](int i) __attribute__((always_inline)) {
    write(to + i * 8,
          _mm_packs_epi32(__m128i(lanes.parts[2 * i]), __m128i(lanes.parts[2 * i + 1])));
  });
#else
  std::int32_t numbers[lane_count];
  write(numbers, lanes);
  for (int i = 0; i < lane_count; ++i) to[i] = static_cast<std::int16_t>(numbers[i]);
#endif
}

// Bits of float32 are ordered as integers. NaN is above infinity.
struct LineMagnitudes {
  alignas(64) std::int32_t above[lane_count] = {}, below[lane_count] = {};
};

// Constants of 16 lines.
struct Lines {
  Reals scales, zeros;
  Reals reciprocals;
  Lanes is_slow;  // whether quotients are needed: the reciprocal is not precise, or there is NaN

  Lines(const DynamicCodes& codes, const LineMagnitudes& magnitudes) {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    const Lanes infinite = broadcast(0x7f800000);
    auto high = read<Lanes>(magnitudes.above), low = read<Lanes>(magnitudes.below);
    const Lanes overflows = (high > infinite) | (low > infinite);
    const Reals above = reals_of(selected(overflows, infinite, high)),
                below = reals_of(selected(overflows, infinite, low));
    const ScaleConstants& at = codes.constants;
    const Reals width = at.asymmetric ? above + below : selected(above > below, above, below);
    Reals scale =
        selected(width < broadcast(at.least), broadcast(at.least), width) / broadcast(at.steps);
    const Reals most = broadcast(at.most);
    scale = selected(most < scale, most, scale);
    const Lanes is_infinite = width == broadcast(infinity);
    scales = selected(is_infinite, broadcast(infinity), scale);
    zeros = broadcast(0.0f);
    if (at.asymmetric) {
      const Reals lowest = broadcast(codes.lowest), highest = broadcast(codes.highest);
      const Reals zero = clamped(lowest - negated(below) / scales, lowest, highest);
      zeros = (zero + broadcast(raising)) - broadcast(raising) + broadcast(0.0f);
    }
    reciprocals = broadcast(1.0f) / scales;
    // A normal reciprocal has the relative error of a rounding.
    is_slow =
        is_infinite | (reciprocals < broadcast(0x1p-126f)) | (reciprocals > broadcast(0x1p126f));
  }
};

// The product with the reciprocal of a scale is less than 2^-13 from the quotient, so that both
// have the same code unless the product is that near to half a step.
constexpr float doubtful_distance = 0.5f - 0x1p-13f;

[[gnu::always_inline]] inline Lanes is_doubtful(const Reals& y, const Reals& raised) {
  const Reals off = y - (raised - broadcast(raising));
  return reals_of(bits_of(off) & broadcast(magnitude_bits)) >= broadcast(doubtful_distance);
}

// Codes less their zero-points, by constants of each lane. Doubtful lanes are marked.
struct LaneCodes {
  Reals lowest, highest, zeros;
  Lanes origins;

  LaneCodes(const DynamicCodes& codes, const Reals& zeros_)
      : lowest(broadcast(codes.lowest)),
        highest(broadcast(codes.highest)),
        zeros(zeros_),
        origins(bits_of(zeros_ + broadcast(raising))) {}

  [[gnu::always_inline]] Lanes by_product(const Reals& x, const Reals& reciprocals,
                                          Lanes& doubtful) const {
    const Reals y = clamped(x * reciprocals + zeros, lowest, highest);
    const Reals raised = y + broadcast(raising);
    doubtful = doubtful | is_doubtful(y, raised);
    return bits_of(raised) - origins;
  }
  [[gnu::always_inline]] Lanes by_quotient(const Reals& x, const Reals& scales) const {
    Reals y = x / scales + zeros;
    y = selected(y == y, y, zeros);
    return bits_of(clamped(y, lowest, highest) + broadcast(raising)) - origins;
  }
};

// Constants of rows, one by one.
struct RowConstants {
  alignas(64) float scales[lane_count], zeros[lane_count], reciprocals[lane_count];
  alignas(64) std::int32_t is_slow[lane_count];

  explicit RowConstants(const Lines& lines) {
    write(scales, lines.scales), write(zeros, lines.zeros);
    write(reciprocals, lines.reciprocals), write(is_slow, lines.is_slow);
  }
};

// Calls use(numbers, place) for all numbers of a row, 16 at a time. The last ones are followed by
// 0.
template <class Use>
[[gnu::always_inline]] inline void each_of_row(const float* x, std::int64_t n, Use&& use) {
  std::int64_t i = 0;
  for (; i + lane_count <= n; i += lane_count) use(read<Reals>(x + i), i);
  if (i < n) use(read_some(x + i, static_cast<int>(n - i), 0.0f), i);
}

// Finds the magnitudes of up to 16 rows.
[[gnu::always_inline]] inline LineMagnitudes magnitudes_of_rows(const DynamicCodes& codes,
                                                                const MatrixBlock& block) {
  LineMagnitudes result;
  for (std::int64_t row = 0; row < block.rows; ++row) {
    if (codes.all != nullptr) {
      std::memcpy(result.above + row, &codes.all->above, sizeof(float));
      std::memcpy(result.below + row, &codes.all->below, sizeof(float));
      continue;
    }
    const float* const x = block.x + row * block.stride;
    Lanes above = broadcast(0), below = broadcast(0);
    if (codes.constants.asymmetric) {
      const Lanes sign = broadcast(-magnitude_bits - 1);
      each_of_row(x, block.columns,
                  [&](const Reals& y, std::int64_t) __attribute__((always_inline)) {
                    above = largest(above, bits_of(y)), below = largest(below, bits_of(y) ^ sign);
                  });
      result.below[row] = largest_lane(below);
    } else {
      each_of_row(x, block.columns,
                  [&](const Reals& y, std::int64_t) __attribute__((always_inline)) {
                    above = largest(above, bits_of(y) & broadcast(magnitude_bits));
                  });
    }
    result.above[row] = largest_lane(above);
  }
  return result;
}

// Quantizes numbers of a row; the target has whole registers.
[[gnu::always_inline]] inline void quantize_row(const DynamicCodes& codes, const RowConstants& rows,
                                                std::int64_t row, const float* x, std::int64_t n,
                                                std::int16_t* to) {
  const LaneCodes lanes(codes, broadcast(rows.zeros[row]));
  Lanes doubtful = broadcast(rows.is_slow[row]);
  if (rows.is_slow[row] == 0) {
    const Reals reciprocals = broadcast(rows.reciprocals[row]);
    each_of_row(x, n, [&](const Reals& y, std::int64_t i) __attribute__((always_inline)) {
      write_words(to + i, lanes.by_product(y, reciprocals, doubtful));
    });
  }
  if (!has_negative(doubtful)) return;
  const Reals scales = broadcast(rows.scales[row]);
  each_of_row(x, n, [&](const Reals& y, std::int64_t i) __attribute__((always_inline)) {
    write_words(to + i, lanes.by_quotient(y, scales));
  });
}

void quantize_rows(const DynamicCodes& all_codes, const MatrixBlock& block, std::int16_t* to,
                   std::int64_t line, float* scales) {
  const DynamicCodes codes = all_codes;
  for (std::int64_t first = 0; first < block.rows; first += lines_together) {
    MatrixBlock some = block;
    some.x += first * block.stride;
    some.rows = block.rows - first < lines_together ? block.rows - first : lines_together;
    const RowConstants rows(Lines(codes, magnitudes_of_rows(codes, some)));
    std::memcpy(scales + first, rows.scales, static_cast<std::size_t>(some.rows) * sizeof(float));
    for (std::int64_t row = 0; row < some.rows; ++row)
      quantize_row(codes, rows, row, some.x + row * some.stride, some.columns,
                   to + (first + row) * line);
  }
}

// Moves pairs of 16 rows side by side. Rows of `from` are `line` words apart.
[[gnu::always_inline]] inline void transpose_pairs(const std::int16_t* from, std::int64_t line,
                                                   std::int64_t pairs, std::int32_t* to) {
#if defined(__SSE4_1__)
  for (std::int64_t pair = 0; pair < pairs; pair += 4)
    for (int row = 0; row < lane_count; row += 4) {
      const auto at = [&](int i) __attribute__((always_inline)) {
        return _mm_castsi128_ps(read<__m128i>(from + (row + i) * line + 2 * pair));
      };
      __m128 a = at(0), b = at(1), c = at(2), d = at(3);
      _MM_TRANSPOSE4_PS(a, b, c, d);
      const __m128 columns[] = {a, b, c, d};
      for (int i = 0; i < 4 && pair + i < pairs; ++i)
        write(to + (pair + i) * lane_count + row, _mm_castps_si128(columns[i]));
    }
#else
  for (std::int64_t pair = 0; pair < pairs; ++pair)
    for (int row = 0; row < lane_count; ++row)
      std::memcpy(to + pair * lane_count + row, from + row * line + 2 * pair, sizeof *to);
#endif
}

void quantize_row_panel(const DynamicCodes& all_codes, const MatrixBlock& block, std::int32_t* to,
                        float* scales) {
  constexpr std::int64_t together = 128;
  const DynamicCodes codes = all_codes;
  const RowConstants rows(Lines(codes, magnitudes_of_rows(codes, block)));
  std::memcpy(scales, rows.scales, sizeof rows.scales);
  for (std::int64_t row = block.rows; row < lane_count; ++row) scales[row] = 1.0f;
  alignas(64) std::int16_t words[lane_count * together];
  if (block.rows < lane_count) std::memset(words, 0, sizeof words);
  for (std::int64_t k = 0; k < block.columns; k += together) {
    const std::int64_t some = block.columns - k < together ? block.columns - k : together;
    for (std::int64_t row = 0; row < block.rows; ++row)
      quantize_row(codes, rows, row, block.x + row * block.stride + k, some,
                   words + row * together);
    transpose_pairs(words, together, (some + 1) / 2, to + k / 2 * lane_count);
  }
}

// Finds the magnitudes of up to 16 columns.
[[gnu::always_inline]] inline LineMagnitudes magnitudes_of_columns(const DynamicCodes& codes,
                                                                   const MatrixBlock& block) {
  LineMagnitudes result;
  if (codes.all != nullptr) {
    for (std::int64_t c = 0; c < block.columns; ++c) {
      std::memcpy(result.above + c, &codes.all->above, sizeof(float));
      std::memcpy(result.below + c, &codes.all->below, sizeof(float));
    }
    return result;
  }
  const auto count = static_cast<int>(block.columns);
  const Lanes sign = broadcast(-magnitude_bits - 1);
  Lanes above = broadcast(0), below = broadcast(0);
  for (std::int64_t row = 0; row < block.rows; ++row) {
    const Lanes bits = bits_of(read_some(block.x + row * block.stride, count, 0.0f));
    above = largest(above, bits), below = largest(below, bits ^ sign);
  }
  write(result.above, above), write(result.below, below);
  return result;
}

void quantize_column_panel(const DynamicCodes& all_codes, const MatrixBlock& block,
                           std::int32_t* to, float* scales) {
  const DynamicCodes codes = all_codes;
  const Lines lines(codes, magnitudes_of_columns(codes, block));
  const auto count = static_cast<int>(block.columns);
  write(scales, lines.scales);
  for (int c = count; c < lane_count; ++c) scales[c] = 1.0f;
  const LaneCodes lanes(codes, lines.zeros);
  const bool is_slow = has_negative(lines.is_slow);
  const Lanes low_half = broadcast(0xffff);
  for (std::int64_t row = 0; row < block.rows; row += 2, to += lane_count) {
    const float* const x = block.x + row * block.stride;
    const Reals first = read_some(x, count, 0.0f);
    const Reals second =
        row + 1 < block.rows ? read_some(x + block.stride, count, 0.0f) : broadcast(0.0f);
    Lanes doubtful = lines.is_slow, low = doubtful, high = doubtful;
    if (!is_slow) {
      low = lanes.by_product(first, lines.reciprocals, doubtful);
      high = lanes.by_product(second, lines.reciprocals, doubtful);
    }
    if (has_negative(doubtful)) {
      low = lanes.by_quotient(first, lines.scales);
      high = lanes.by_quotient(second, lines.scales);
    }
    const Lanes upper = map_registers<Lanes>([&](int i) __attribute__((always_inline)) {
      return IntRegister(wrapping(high.parts[i]) << 16);
    });
    write(to, (low & low_half) | upper);
  }
}

[[gnu::always_inline]] inline void write_bytes(std::uint8_t* to, const Lanes& lanes, int count) {
  const ByteLanes bytes = narrowed(lanes);
  if (count == lane_count) write(to, bytes);
  else std::memcpy(to, &bytes, static_cast<std::size_t>(count));
}

void quantize(const DynamicLine& line, const float* x, std::int64_t n, std::uint8_t* to) {
  constexpr std::int64_t together = 4 * lane_count;
  const float reciprocal = 1 / line.scale;
  const bool is_slow = !(reciprocal >= 0x1p-126f && reciprocal <= 0x1p126f);
  const Reals lowest = broadcast(line.lowest), highest = broadcast(line.highest);
  const Reals zero = broadcast(line.zero), nan = broadcast(line.nan);
  const Reals scales = broadcast(line.scale), reciprocals = broadcast(reciprocal);
  const Lanes origin = broadcast(raising_bits + static_cast<std::int32_t>(line.lowest));
  const auto within = [&](const Reals& z) __attribute__((always_inline)) {
    const Reals y = z + zero;
    return clamped(selected(y == y, y, nan), lowest, highest);
  };
  for (std::int64_t done = 0; done < n; done += together, x += together, to += together) {
    const std::int64_t some = n - done < together ? n - done : together;
    Lanes doubtful = broadcast(is_slow ? -1 : 0);
    if (!is_slow)
      for_each_block(some, [&](std::int64_t i, int count) __attribute__((always_inline)) {
        const Reals y = within(read_some(x + i, count, 0.0f) * reciprocals);
        const Reals raised = y + broadcast(raising);
        doubtful = doubtful | is_doubtful(y, raised);
        write_bytes(to + i, bits_of(raised) - origin, count);
      });
    if (!has_negative(doubtful)) continue;
    for_each_block(some, [&](std::int64_t i, int count) __attribute__((always_inline)) {
      const Reals y = within(read_some(x + i, count, 0.0f) / scales);
      write_bytes(to + i, bits_of(y + broadcast(raising)) - origin, count);
    });
  }
}

void scale_sums(const SumScales& scales) {
  const SumScales at = scales;
  const Reals factor = broadcast(at.factor);
  for (std::int64_t row = 0; row < at.rows; ++row) {
    const std::int32_t* const sums = at.sums + row * at.sum_stride;
    float* const to = at.to + row * at.stride;
    const Reals scale = broadcast(at.of_rows[row]);
    for_each_block(at.columns, [&](std::int64_t c, int count) __attribute__((always_inline)) {
      // Sums and scales are padded to whole registers.
      const auto other = read<Reals>(at.of_columns + c);
      const Lanes is_less = scale < other;
      const Reals y = to_reals(read<Lanes>(sums + c)) * selected(is_less, scale, other);
      write_some(to + c, y * selected(is_less, other, scale) * factor, count);
    });
  }
}

}  // namespace
}  // namespace anybit::lowbit
