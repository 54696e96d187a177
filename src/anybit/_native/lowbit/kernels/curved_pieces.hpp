// SPDX-License-Identifier: Apache-2.0
// Pieces on a curve, see CurvePanel.
#pragma once
#include <algorithm>
#include <bit>

#include "epilogues.hpp"

namespace {

using anybit::lowbit::curve_segments;
using anybit::lowbit::CurvePanel;

// Coefficients of 32 segments in pairs of registers.
struct CurveTable {
  __m512 low[4], high[4];

  explicit CurveTable(const float (*curve)[curve_segments]) {
    repeat<4>([&](int i) __attribute__((always_inline)) {
      low[i] = _mm512_load_ps(curve[i]), high[i] = _mm512_load_ps(curve[i] + 16);
    });
  }

  // The curve at places; the polynomial of a segment depends on the distance from its middle.
  [[gnu::always_inline]] __m512 at(__m512 place) const {
    const __m512 raised_by = _mm512_set1_ps(raise), last = _mm512_set1_ps(curve_segments - 1);
    const __m512 nearest = _mm512_add_ps(_mm512_min_ps(place, last), raised_by);
    const __m512 u = _mm512_sub_ps(place, _mm512_sub_ps(nearest, raised_by));
    const __m512i segment = _mm512_castps_si512(nearest);
    const auto coefficients = [&](int i) __attribute__((always_inline)) {
      return _mm512_permutex2var_ps(low[i], segment, high[i]);
    };
    __m512 value = _mm512_fmadd_ps(coefficients(3), u, coefficients(2));
    value = _mm512_fmadd_ps(value, u, coefficients(1));
    return _mm512_fmadd_ps(value, u, coefficients(0));
  }
};

// The constants of a panel.
struct CurveLanes {
  __m512 gain, offset, low, high, scale, zero;

  explicit CurveLanes(const CurvePanel& from)
      : gain(_mm512_load_ps(from.gains)),
        offset(_mm512_load_ps(from.offsets)),
        low(_mm512_load_ps(from.lows)),
        high(_mm512_load_ps(from.highs)),
        scale(_mm512_load_ps(from.scales)),
        zero(_mm512_load_ps(from.zeros)) {}

  // Numbers that round to indices.
  [[gnu::always_inline]] __m512 values(const CurveTable& curve, const Lanes& sum) const {
    const __m512 numbers = _mm512_cvtepi32_ps(__m512i(sum.parts[0]));
    const __m512 place = _mm512_fmadd_ps(numbers, gain, offset);
    const __m512 inside = _mm512_min_ps(_mm512_max_ps(place, low), high);
    return _mm512_fmadd_ps(curve.at(inside), scale, zero);
  }
};

// Searches the pieces of the doubtful channels of a pixel.
template <Settling settling>
[[gnu::noinline]] void search_doubtful(const EpilogueBlock& at, int pixel, int lane,
                                       std::uint32_t doubtful) {
  using anybit::lowbit::most_pieces;
  alignas(64) std::int32_t sums[lane_count];
  write(sums, accumulators<settling>(at, pixel, lane));
  for (; doubtful != 0; doubtful &= doubtful - 1) {
    const int i = std::countr_zero(doubtful);
    const std::ptrdiff_t channel = lane + i;
    const std::int32_t* const starts = at.thresholds + channel * most_pieces;
    const auto piece = std::upper_bound(starts, starts + most_pieces - 1, sums[i]) - starts;
    at.targets[pixel][channel] = std::byte{at.piece_codes[channel * most_pieces + piece]};
  }
}

// Stores the indices of four pixels. Packing interleaves them by groups of four channels.
[[gnu::always_inline]] inline void store_four(const EpilogueBlock& at, const int (&pixels)[4],
                                              int lane, const __m512 (&values)[4]) {
  const auto pair = [&](int i) __attribute__((always_inline)) {
    return _mm512_packs_epi32(_mm512_cvtps_epi32(values[i]), _mm512_cvtps_epi32(values[i + 1]));
  };
  const __m512i bytes = _mm512_permutexvar_epi32(
      _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
      _mm512_packus_epi16(pair(0), pair(2)));
  const int channels = std::min(at.channels - lane, lane_count);
  const auto mask = static_cast<__mmask16>((1u << channels) - 1);
  const auto store = [&](int i, __m128i own) __attribute__((always_inline)) {
    _mm_mask_storeu_epi8(at.targets[pixels[i]] + lane, mask, own);
  };
  store(0, _mm512_castsi512_si128(bytes)), store(1, _mm512_extracti32x4_epi32(bytes, 1));
  store(2, _mm512_extracti32x4_epi32(bytes, 2)), store(3, _mm512_extracti32x4_epi32(bytes, 3));
}

template <Settling settling>
void some_curved_pieces(const EpilogueBlock& block) {
  const EpilogueBlock at = block;
  const CurveTable curve(at.curve);
  for (int lane = 0; lane < at.channels; lane += lane_count) {
    const CurvePanel& panel = at.curve_panels[lane / lane_count];
    const CurveLanes own(panel);
    const __m512 limit = _mm512_load_ps(panel.limits);
    for (int first = 0; first < at.count; first += 4) {
      int pixels[4];
      __m512 values[4], off[4];
      repeat<4>([&](int i) __attribute__((always_inline)) {
        pixels[i] = std::min(first + i, at.count - 1);
        values[i] = own.values(curve, accumulators<settling>(at, pixels[i], lane));
        off[i] = _mm512_reduce_ps(values[i], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
      });
      store_four(at, pixels, lane, values);
      // The larger magnitude.
      const auto larger = [](__m512 a, __m512 b)
                              __attribute__((always_inline)) { return _mm512_range_ps(a, b, 11); };
      const __m512 most = larger(larger(off[0], off[1]), larger(off[2], off[3]));
      if (_mm512_cmp_ps_mask(most, limit, _CMP_GT_OQ) == 0) continue;
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t doubtful =
            _mm512_cmp_ps_mask(larger(off[i], off[i]), limit, _CMP_GT_OQ);
        if (doubtful != 0) search_doubtful<settling>(at, pixels[i], lane, doubtful);
      }
    }
  }
}

void curved_pieces(const EpilogueBlock& at) {
  if (at.settling == Settling::raw) some_curved_pieces<Settling::raw>(at);
  else if (at.settling == Settling::bare) some_curved_pieces<Settling::bare>(at);
  else if (at.settling == Settling::plain) some_curved_pieces<Settling::plain>(at);
  else some_curved_pieces<Settling::general>(at);
}

}  // namespace
