// SPDX-License-Identifier: Apache-2.0
// Epilogues on sums of 16 bits: 32 channels at once.
#pragma once
#include "epilogues.hpp"

namespace {

using anybit::lowbit::short_channels;
using anybit::lowbit::ShortEpilogueBlock;
using anybit::lowbit::ShortForm;

[[gnu::always_inline]] inline Shorts broadcast_short(std::int32_t number) {
  return map_registers<Shorts>([&](int) __attribute__((always_inline)) {
    return ShortRegister{} + static_cast<std::int16_t>(number);
  });
}

#if defined(__AVX2__)
#define ANYBIT_SHORTS(name) _mm256_##name
using ShortIntrinsic = __m256i;
#else
#define ANYBIT_SHORTS(name) _mm_##name
using ShortIntrinsic = __m128i;
#endif

[[gnu::always_inline]] inline Shorts clamped(const Shorts& x, const Shorts& low,
                                             const Shorts& high) {
  return map_registers<Shorts>([&](int i) __attribute__((always_inline)) {
    return ShortRegister(ANYBIT_SHORTS(min_epi16)(
        ANYBIT_SHORTS(max_epi16)(ShortIntrinsic(x.parts[i]), ShortIntrinsic(low.parts[i])),
        ShortIntrinsic(high.parts[i])));
  });
}

// The upper 16 bits of unsigned products, shifted right.
[[gnu::always_inline]] inline Shorts scaled_down(const Shorts& x, const Shorts& multiplier,
                                                 int shift) {
  const __m128i bits = _mm_cvtsi32_si128(shift);
  return map_registers<Shorts>([&](int i) __attribute__((always_inline)) {
    return ShortRegister(ANYBIT_SHORTS(srl_epi16)(
        ANYBIT_SHORTS(mulhi_epu16)(ShortIntrinsic(x.parts[i]), ShortIntrinsic(multiplier.parts[i])),
        bits));
  });
}

// All ones where x > threshold.
[[gnu::always_inline]] inline Shorts above(const Shorts& x, const Shorts& threshold) {
  return map_registers<Shorts>([&](int i) __attribute__((always_inline)) {
    return ShortRegister(
        ANYBIT_SHORTS(cmpgt_epi16)(ShortIntrinsic(x.parts[i]), ShortIntrinsic(threshold.parts[i])));
  });
}
#undef ANYBIT_SHORTS

// Packs 32 numbers of 0..255 to bytes.
[[gnu::always_inline]] inline void write_bytes(void* at, const Shorts& shorts) {
#if defined(__AVX2__)
  const __m256i bytes = _mm256_packus_epi16(__m256i(shorts.parts[0]), __m256i(shorts.parts[1]));
  write(at, _mm256_permute4x64_epi64(bytes, 0xd8));
#else
  repeat<2>([&](int i) __attribute__((always_inline)) {
    write(static_cast<std::byte*>(at) + 16 * i,
          _mm_packus_epi16(__m128i(shorts.parts[2 * i]), __m128i(shorts.parts[2 * i + 1])));
  });
#endif
}

// One bit per lane of a comparison.
[[gnu::always_inline]] inline std::uint32_t mask_of(const Shorts& all) {
#if defined(__AVX2__)
  const __m256i bytes = _mm256_packs_epi16(__m256i(all.parts[0]), __m256i(all.parts[1]));
  return static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_permute4x64_epi64(bytes, 0xd8)));
#else
  std::uint32_t mask = 0;
  repeat<2>([&](int i) __attribute__((always_inline)) {
    const __m128i bytes = _mm_packs_epi16(__m128i(all.parts[2 * i]), __m128i(all.parts[2 * i + 1]));
    mask |= static_cast<std::uint32_t>(_mm_movemask_epi8(bytes)) << 16 * i;
  });
  return mask;
#endif
}

// Accumulators of a block of channels less their centers; `lane` is its first channel.
template <Settling settling>
[[gnu::always_inline]] inline Shorts short_accumulators(const ShortEpilogueBlock& at, int pixel,
                                                        int lane) {
  const auto sums = read<Shorts>(at.sums + pixel * at.stride + lane);
  if constexpr (settling == Settling::bare) return sums;
  const auto constants = read<Shorts>(at.constants + (at.classes[pixel] - at.first_class) + lane);
  if constexpr (settling == Settling::plain) return sums + constants;
  return (sums + broadcast_short(at.addends[pixel])) * read<Shorts>(at.scales + lane) + constants;
}

// Stores the indices of a block of channels for all pixels; `index(x)` computes them.
template <Settling settling, class Index>
[[gnu::always_inline]] inline void store_short(const ShortEpilogueBlock& at, int lane,
                                               Index&& index) {
  const int channels = at.channels - lane;
  if (at.coding == Coding::bytes && channels >= short_channels) {
    for (int pixel = 0; pixel < at.count; ++pixel)
      write_bytes(at.targets[pixel] + at.place + lane,
                  index(short_accumulators<settling>(at, pixel, lane)));
    return;
  }
  const int here = channels < short_channels ? channels : short_channels;
  alignas(32) std::uint8_t indices[short_channels];
  for (int pixel = 0; pixel < at.count; ++pixel) {
    write_bytes(indices, index(short_accumulators<settling>(at, pixel, lane)));
    anybit::lowbit::put_run(at.coding, at.targets[pixel] + at.place, lane, indices, here);
  }
}

template <Settling settling>
void short_scaled(const ShortEpilogueBlock& block, int lane) {
  const ShortEpilogueBlock at = block;
  const auto low = read<Shorts>(at.lows + lane), high = read<Shorts>(at.highs + lane),
             factor = read<Shorts>(at.factors + lane), term = read<Shorts>(at.terms + lane),
             multiplier = read<Shorts>(at.multipliers + lane);
  store_short<settling>(at, lane, [&](const Shorts& x) __attribute__((always_inline)) {
    return scaled_down(clamped(x, low, high) * factor + term, multiplier, at.right_shift);
  });
}

// Stores bits (2 levels), or planes or nibbles (3 or 4 levels) for all pixels.
template <Settling settling, Coding coding>
[[gnu::always_inline]] inline void short_bits(const ShortEpilogueBlock& at, int lane,
                                              const std::int16_t* thresholds) {
  const auto one = read<Shorts>(thresholds);
  constexpr int planes = coding == Coding::bits ? 1 : 2;
  const int channels = at.channels - lane;
  const std::uint32_t there = channels < short_channels ? (1u << channels) - 1 : ~0u;
  for (int pixel = 0; pixel < at.count; ++pixel) {
    const Shorts x = short_accumulators<settling>(at, pixel, lane);
    std::byte* const target = at.targets[pixel] + at.place + lane / 8 * planes;
    std::uint32_t low = mask_of(above(x, one));
    if constexpr (planes == 2) {
      std::uint32_t two = 0, three = 0;
      if (at.levels > 2) two = mask_of(above(x, read<Shorts>(thresholds + short_channels)));
      if (at.levels > 3) three = mask_of(above(x, read<Shorts>(thresholds + 2 * short_channels)));
      low = (low ^ two ^ three) & there, two &= there;
      if constexpr (coding == Coding::nibbles) anybit::lowbit::mix_planes(low, two);
      anybit::lowbit::store_word(target + 4, two);
    }
    anybit::lowbit::store_word(target, planes == 1 ? low & there : low);
  }
}

template <Settling settling>
void short_thresholds(const ShortEpilogueBlock& block, int lane) {
  const ShortEpilogueBlock at = block;
  const std::int16_t* const thresholds = at.thresholds + lane * (at.levels - 1);
  if (at.coding == Coding::bits) return short_bits<settling, Coding::bits>(at, lane, thresholds);
  if (at.coding == Coding::planes)
    return short_bits<settling, Coding::planes>(at, lane, thresholds);
  if (at.coding == Coding::nibbles)
    return short_bits<settling, Coding::nibbles>(at, lane, thresholds);
  store_short<settling>(at, lane, [&](const Shorts& x) __attribute__((always_inline)) {
    Shorts count = broadcast_short(0);
    const std::int16_t* threshold = thresholds;
#if !defined(__clang__)
#pragma GCC unroll 5
#endif
    for (int i = 1; i < at.levels; ++i, threshold += short_channels)
      count = count - above(x, read<Shorts>(threshold));
    return count;
  });
}

// Packs 32 indices.
[[gnu::always_inline]] inline Shorts packed_shorts(const Lanes (&halves)[2]) {
#if defined(__AVX2__)
  return map_registers<Shorts>([&](int i) __attribute__((always_inline)) {
    const __m256i shorts =
        _mm256_packs_epi32(__m256i(halves[i].parts[0]), __m256i(halves[i].parts[1]));
    return ShortRegister(_mm256_permute4x64_epi64(shorts, 0xd8));
  });
#else
  return map_registers<Shorts>([&](int i) __attribute__((always_inline)) {
    const Lanes& half = halves[i / 2];
    return ShortRegister(
        _mm_packs_epi32(__m128i(half.parts[i % 2 * 2]), __m128i(half.parts[i % 2 * 2 + 1])));
  });
#endif
}

template <Settling settling>
void short_affine(const ShortEpilogueBlock& block, int lane) {
  const ShortEpilogueBlock at = block;
  const Reals bottom = broadcast(-static_cast<float>(at.shift));
  const Reals top = bottom + broadcast(static_cast<float>(at.levels - 1));
  store_short<settling>(at, lane, [&](const Shorts& x) __attribute__((always_inline)) {
    Lanes halves[2] = {read<Lanes>(at.centers + lane), read<Lanes>(at.centers + lane + lane_count)};
    add_widened(halves, x);
    repeat<2>([&](int half) __attribute__((always_inline)) {
      const int from = lane + half * lane_count;
      Reals y = to_reals(halves[half]) * read<Reals>(at.gains + from);
      y = y + read<Reals>(at.offsets + from);
      halves[half] = nearest(clamped(y, bottom, top), at.shift);
    });
    return packed_shorts(halves);
  });
}

template <Settling settling>
void short_block(const ShortEpilogueBlock& at) {
  for (int lane = 0; lane < at.channels; lane += short_channels) switch (at.forms[lane / 32]) {
      case ShortForm::none:
        break;
      case ShortForm::scaled:
        short_scaled<settling>(at, lane);
        break;
      case ShortForm::thresholds:
        short_thresholds<settling>(at, lane);
        break;
      case ShortForm::affine:
        short_affine<settling>(at, lane);
        break;
    }
}

void short_epilogue(const ShortEpilogueBlock& at) {
  if (at.settling == Settling::bare) short_block<Settling::bare>(at);
  else if (at.settling == Settling::plain) short_block<Settling::plain>(at);
  else short_block<Settling::general>(at);
}

}  // namespace
