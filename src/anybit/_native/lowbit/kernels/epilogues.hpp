// SPDX-License-Identifier: Apache-2.0
// Epilogues on the sums of a chunk of channels, while these are in the L1 cache.
#pragma once
#include "_native/lowbit/lanes.hpp"
#include "_native/lowbit/product_kernels.hpp"
#include "_native/lowbit/unroll.hpp"

namespace {

using anybit::lowbit::chunk_channels;
using anybit::lowbit::Coding;
using anybit::lowbit::EpilogueBlock;
using anybit::lowbit::few_levels;
using anybit::lowbit::Settling;

// Computes the accumulators of a panel; `lane` is its first channel in the chunk.
template <Settling settling = Settling::general>
[[gnu::always_inline]] inline Lanes accumulators(const EpilogueBlock& at, int pixel, int lane) {
  const auto sums = read<Lanes>(at.sums + pixel * at.stride + lane);
  if constexpr (settling == Settling::bare) return sums;
  if constexpr (settling == Settling::raw) return sums ^ read<Lanes>(at.scales + lane);
  if constexpr (settling == Settling::plain)
    return sums + read<Lanes>(at.constants[pixel] + at.first_channel + lane);
  return (sums + broadcast(at.addends[pixel])) * read<Lanes>(at.scales + lane) +
         read<Lanes>(at.constants[pixel] + at.first_channel + lane);
}

// Calls word(pixel, lane, mask) for blocks of 32 channels of a pixel. Channels after the last one
// are readable, and masked.
template <class Word>
[[gnu::always_inline]] inline void each_word(const EpilogueBlock& at, Word&& word) {
  for (int pixel = 0; pixel < at.count; ++pixel) {
    int lane = 0;
    for (; lane + 32 <= at.channels; lane += 32) word(pixel, lane, ~0u);
    if (lane < at.channels) word(pixel, lane, (1u << (at.channels - lane)) - 1);
  }
}

[[gnu::always_inline]] inline bool has_whole_bytes(const EpilogueBlock& at) {
  return at.coding == Coding::bytes && at.channels == chunk_channels;
}

// Stores the indices of the channels of a pixel; `index(pixel, lane)` returns those of a panel.
template <class Index>
[[gnu::always_inline]] inline void store_pixel(const EpilogueBlock& at, int pixel, bool whole,
                                               Index&& index) {
  std::byte* const target = at.targets[pixel];
  if (whole) {
    Lanes panels[chunk_channels / lane_count];
    repeat<chunk_channels / lane_count>(
        [&](int i) __attribute__((always_inline)) { panels[i] = index(pixel, i * lane_count); });
    write_narrowed(target, panels);
  } else if (at.coding == Coding::bytes) {
    int lane = 0;
    for (; lane + lane_count <= at.channels; lane += lane_count)
      write(target + lane, narrowed(index(pixel, lane)));
    if (lane < at.channels) {
      const ByteLanes last = narrowed(index(pixel, lane));
      copy_few<std::byte>(target + lane, &last, at.channels - lane);
    }
  } else {
    alignas(64) std::uint8_t indices[chunk_channels];
    for (int lane = 0; lane < at.channels; lane += lane_count)
      write(indices + lane, narrowed(index(pixel, lane)));
    anybit::lowbit::put_run(at.coding, target, 0, indices, at.channels);
  }
}

// The same for all pixels. `at` is a copy, so that the compiler need not assume that stores change
// it.
template <class Index>
[[gnu::always_inline]] inline void store_indices(const EpilogueBlock& at, Index&& index) {
  const bool whole = has_whole_bytes(at);
  for (int pixel = 0; pixel < at.count; ++pixel) store_pixel(at, pixel, whole, index);
}

template <Settling settling>
[[gnu::always_inline]] inline void to_bits(const EpilogueBlock& at) {
  each_word(at, [&](int pixel, int lane, std::uint32_t mask) __attribute__((always_inline)) {
    const auto half = [&](int from) __attribute__((always_inline)) {
      return reached(accumulators<settling>(at, pixel, from), read<Lanes>(at.thresholds + from));
    };
    anybit::lowbit::store_word(at.targets[pixel] + lane / 8,
                               (half(lane) | half(lane + lane_count) << lane_count) & mask);
  });
}

// For three or four levels; with three, the last threshold is unreachable.
template <Settling settling, Coding coding>
[[gnu::always_inline]] inline void to_planes(const EpilogueBlock& at) {
  each_word(at, [&](int pixel, int lane, std::uint32_t mask) __attribute__((always_inline)) {
    std::uint32_t low = 0, high = 0;
    repeat<2>([&](int i) __attribute__((always_inline)) {
      const int from = lane + i * lane_count;
      const Lanes sum = accumulators<settling>(at, pixel, from);
      const std::int32_t* const thresholds = at.thresholds + from * (at.levels - 1);
      const std::uint32_t one = reached(sum, read<Lanes>(thresholds)),
                          two = reached(sum, read<Lanes>(thresholds + lane_count));
      const std::uint32_t three =
          at.levels == 4 ? reached(sum, read<Lanes>(thresholds + 2 * lane_count)) : 0;
      low |= (one ^ two ^ three) << i * lane_count;
      high |= two << i * lane_count;
    });
    low &= mask, high &= mask;
    if constexpr (coding == Coding::nibbles) anybit::lowbit::mix_planes(low, high);
    std::byte* const target = at.targets[pixel] + lane / 4;
    anybit::lowbit::store_word(target, low);
    anybit::lowbit::store_word(target + 4, high);
  });
}

template <Settling settling>
void some_thresholds(const EpilogueBlock& block) {
  const EpilogueBlock at = block;
  if (at.coding == Coding::bits && at.levels == 2) return to_bits<settling>(at);
  if (at.coding == Coding::planes && at.levels >= 3) return to_planes<settling, Coding::planes>(at);
  if (at.coding == Coding::nibbles && at.levels >= 3)
    return to_planes<settling, Coding::nibbles>(at);
  store_indices(at, [&](int pixel, int lane) __attribute__((always_inline)) {
    const Lanes sum = accumulators<settling>(at, pixel, lane);
    const std::int32_t* threshold = at.thresholds + lane * (at.levels - 1);
    Lanes count = broadcast(0);
#if !defined(__clang__)
#pragma GCC unroll 5
#endif
    for (int i = 1; i < at.levels; ++i, threshold += lane_count)
      count = counted(count, sum, read<Lanes>(threshold));
    return count;
  });
}

void thresholds(const EpilogueBlock& at) {
  if (at.settling == Settling::raw) some_thresholds<Settling::raw>(at);
  else some_thresholds<Settling::general>(at);
}

alignas(64) constexpr std::int32_t lane_numbers[lane_count] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                               8, 9, 10, 11, 12, 13, 14, 15};

// Searches 256 thresholds from a bucket of sums on.
[[gnu::always_inline]] inline Lanes search_in_buckets(const EpilogueBlock& at, const Lanes& sum,
                                                      int lane) {
  using anybit::lowbit::bucket_count;
  const auto numbers = read<Lanes>(lane_numbers), low = read<Lanes>(at.bucket_lows + lane);
  const Lanes offset = smaller(larger(sum, low), read<Lanes>(at.bucket_highs + lane)) - low;
  const Lanes bucket = offset >> read<Lanes>(at.bucket_shifts + lane);
  Lanes count = gathered(at.bucket_codes + std::ptrdiff_t{lane} * bucket_count,
                         numbers * broadcast(bucket_count) + bucket);
  const std::int32_t* const thresholds = at.thresholds + std::ptrdiff_t{lane} * 256;
  const Lanes own = numbers * broadcast(256);
  for (int step = 0; step < at.bucket_steps; ++step)
    count = counted(count, sum, gathered(thresholds, own + smaller(count, broadcast(255))));
  // The largest sum reaches thresholds that no other does.
  const Lanes most = broadcast(at.levels - 1);
  return selected(sum == broadcast(0x7fffffff), most, smaller(count, most));
}

// Branchless binary search in 256 thresholds.
[[gnu::always_inline]] inline Lanes search_by_halving(const EpilogueBlock& at, const Lanes& sum,
                                                      int lane) {
  const Lanes own = read<Lanes>(lane_numbers) * broadcast(256);
  const std::int32_t* const thresholds = at.thresholds + std::ptrdiff_t{lane} * 256;
  Lanes count = broadcast(0);
  for (int half = 128; half > 0; half /= 2) {
    const Lanes middle = gathered(thresholds, own + count + broadcast(half - 1));
    count = count + ((sum >= middle) & broadcast(half));
  }
  return smaller(count, broadcast(at.levels - 1));
}

[[gnu::always_inline]] inline Lanes searched(const EpilogueBlock& at, const Lanes& sum, int lane) {
  return at.bucket_codes != nullptr ? search_in_buckets(at, sum, lane)
                                    : search_by_halving(at, sum, lane);
}

template <Settling settling>
void search_thresholds(const EpilogueBlock& block) {
  const EpilogueBlock at = block;
  store_indices(at, [&](int pixel, int lane) __attribute__((always_inline)) {
    return searched(at, accumulators<settling>(at, pixel, lane), lane);
  });
}

void many_thresholds(const EpilogueBlock& at) {
  if (at.settling == Settling::raw) search_thresholds<Settling::raw>(at);
  else search_thresholds<Settling::general>(at);
}

// Branchless binary search in the starts of pieces.
[[gnu::always_inline]] inline Lanes piece_codes(const EpilogueBlock& at, const Lanes& sum,
                                                int lane) {
  using anybit::lowbit::most_pieces;
  const Lanes own = read<Lanes>(lane_numbers) * broadcast(std::int32_t{most_pieces});
  const std::int32_t* const starts = at.thresholds + std::ptrdiff_t{lane} * most_pieces;
  Lanes count = broadcast(0);
  for (int half = most_pieces / 2; half > 0; half /= 2) {
    const Lanes middle = gathered(starts, own + count + broadcast(half - 1));
    count = count + ((sum >= middle) & broadcast(half));
  }
  return gathered(at.piece_codes + std::ptrdiff_t{lane} * most_pieces, own + count);
}

template <Settling settling>
void search_pieces(const EpilogueBlock& block) {
  const EpilogueBlock at = block;
  store_indices(at, [&](int pixel, int lane) __attribute__((always_inline)) {
    return piece_codes(at, accumulators<settling>(at, pixel, lane), lane);
  });
}

void pieces(const EpilogueBlock& at) {
  if (at.settling == Settling::raw) search_pieces<Settling::raw>(at);
  else search_pieces<Settling::general>(at);
}

// Calls use(pixel, entries + more) for the pixels of a panel. find(pixel, keep) returns the places
// of the entries, and calls keep(more).
#if !defined(__AVX2__) || defined(__AVX512F__)
template <class Find, class Use>
[[gnu::always_inline]] inline void each_loaded(const EpilogueBlock& at, const std::int32_t* entries,
                                               Find&& find, Use&& use) {
  for (int pixel = 0; pixel < at.count; ++pixel) {
    Lanes more;
    const Lanes place =
        find(pixel, [&](const Lanes& kept) __attribute__((always_inline)) { more = kept; });
    use(pixel, gathered(entries, place) + more);
  }
}
#else
// Copies entries one by one, for all pixels before the first use: this takes less time than gather
// instructions, or than moves between registers of integers and of vectors. A curve (see
// CurvePanel) of 8 segments, whose 7 coefficients fit registers, takes 1.3 times the time.
template <class Find, class Use>
[[gnu::always_inline]] inline void each_loaded(const EpilogueBlock& at, const std::int32_t* entries,
                                               Find&& find, Use&& use) {
  using anybit::lowbit::most_block_pixels;
  alignas(64) std::int32_t loaded[most_block_pixels * lane_count];
  alignas(64) std::int32_t more[most_block_pixels * lane_count];
  for (int pixel = 0; pixel < at.count; ++pixel) {
    std::int32_t* const to = loaded + pixel * lane_count;
    alignas(64) std::uint64_t pairs[lane_count / 2];
    write(pairs, find(pixel, [&](const Lanes& kept) __attribute__((always_inline)) {
            write(more + pixel * lane_count, kept);
          }));
    repeat<lane_count / 2>([&](int i) __attribute__((always_inline)) {
      std::int32_t low = entries[static_cast<std::uint32_t>(pairs[i])],
                   high = entries[pairs[i] >> 32];
      asm("" : "+r"(low), "+r"(high));
      to[2 * i] = low, to[2 * i + 1] = high;
    });
  }
  for (int pixel = 0; pixel < at.count; ++pixel)
    use(pixel, read<Lanes>(loaded + pixel * lane_count) + read<Lanes>(more + pixel * lane_count));
}
#endif

[[gnu::always_inline]] inline Lanes sixteen_times(const Lanes& lanes) {
  return map_registers<Lanes>([&](int i) __attribute__((always_inline)) {
    return IntRegister(wrapping(lanes.parts[i]) << 4);
  });
}

// Shifts zeros in.
template <int bits>
[[gnu::always_inline]] inline Lanes shifted_right(const Lanes& lanes) {
  return map_registers<Lanes>([&](int i) __attribute__((always_inline)) {
    return IntRegister(wrapping(lanes.parts[i]) >> bits);
  });
}

// Stores the codes of the channels of a panel.
[[gnu::always_inline]] inline void store_panel(const EpilogueBlock& at, int pixel, int lane,
                                               const ByteLanes& codes) {
  std::byte* const target = at.targets[pixel] + lane;
  const int channels = at.channels - lane;
  if (channels >= lane_count) write(target, codes);
  else copy_few<std::byte>(target, &codes, channels);
}

template <Settling settling>
[[gnu::noinline]] void search_panel(const EpilogueBlock& at, int pixel, int lane) {
  const Lanes sum = accumulators<settling>(at, pixel, lane);
  store_panel(at, pixel, lane, narrowed(piece_codes(at, sum, lane)));
}

// Pieces by bucket: see PiecePanel.
template <Settling settling>
void some_packed_pieces(const EpilogueBlock& block) {
  const EpilogueBlock at = block;
  const Lanes before_pivot = broadcast(at.side_buckets * lane_count);
  const auto numbers = read<Lanes>(lane_numbers);
  for (int lane = 0; lane < at.channels; lane += lane_count) {
    const auto& own = at.piece_panels[lane / lane_count];
    const auto pivot = read<Lanes>(own.pivots), shift = read<Lanes>(own.shifts),
               more = read<Lanes>(own.more);
    const std::int32_t* const entries = at.packed_steps + std::ptrdiff_t{lane} * at.packed_count;
    const auto find = [&](int pixel, auto&& keep) __attribute__((always_inline)) {
      const Lanes sum = accumulators<settling>(at, pixel, lane);
      const Lanes far = smaller(larger(sum, read<Lanes>(own.lows)), read<Lanes>(own.highs)) - pivot;
      const Lanes is_before = broadcast(0) > far;
      const Lanes distance = far ^ is_before;
      const Lanes bucket = distance >> (shift + (is_before & more));
      keep(distance);
      return sixteen_times(bucket) + (is_before & before_pivot) + numbers;
    };
    each_loaded(at, entries, find,
                [&](int pixel, const Lanes& reached) __attribute__((always_inline)) {
                  if (has_negative(reached)) search_panel<settling>(at, pixel, lane);
                  else store_panel(at, pixel, lane, narrowed(shifted_right<23>(reached)));
                });
  }
}

void packed_pieces(const EpilogueBlock& at) {
  if (at.settling == Settling::raw) some_packed_pieces<Settling::raw>(at);
  else if (at.settling == Settling::bare) some_packed_pieces<Settling::bare>(at);
  else if (at.settling == Settling::plain) some_packed_pieces<Settling::plain>(at);
  else some_packed_pieces<Settling::general>(at);
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// Thresholds by bucket: see PackedSteps. Adding the distance from the start of the bucket carries
// into the code where the threshold is reached.
void packed_steps(const EpilogueBlock& block) {
  const EpilogueBlock at = block;
  const Lanes below_code = broadcast(0xffffff);
  for (int lane = 0; lane < at.channels; lane += lane_count) {
    const auto low = read<Lanes>(at.bucket_lows + lane), high = read<Lanes>(at.bucket_highs + lane);
    const auto shift = read<Lanes>(at.bucket_shifts + lane), numbers = read<Lanes>(lane_numbers);
    const Lanes below_bucket = below_code >> (broadcast(24) - shift);
    const std::int32_t* const entries = at.packed_steps + std::ptrdiff_t{lane} * at.packed_count;
    const auto find = [&](int pixel, auto&& keep) __attribute__((always_inline)) {
      const Lanes sum = accumulators<Settling::raw>(at, pixel, lane);
      const Lanes offset = smaller(larger(sum, low), high) - low;
      keep(offset & below_bucket);
      return map_registers<Lanes>([&](int i) __attribute__((always_inline)) {
        const __m256i bucket = _mm256_srlv_epi32(__m256i(offset.parts[i]), __m256i(shift.parts[i]));
        return IntRegister(_mm256_slli_epi32(bucket, 4)) + numbers.parts[i];
      });
    };
    each_loaded(at, entries, find,
                [&](int pixel, const Lanes& reached) __attribute__((always_inline)) {
                  store_panel(at, pixel, lane, narrowed(shifted_right<24>(reached)));
                });
  }
}
#endif

// The last bit of 1.5 * 2^23 is worth 1: adding it rounds numbers below 2^22 to integers, ties to
// even.
constexpr float raise = 12582912.0f;
[[gnu::always_inline]] inline Reals raised(const Reals& y) { return y + broadcast(raise); }

// The integers of raised numbers, plus a constant.
[[gnu::always_inline]] inline Lanes index_of(const Reals& y, std::int32_t more = 0) {
  return bits_of(y) + broadcast(more - 0x4b400000);
}

// Rounds numbers below 2^22 to integers, plus a constant.
[[gnu::always_inline]] inline Lanes nearest(const Reals& y, std::int32_t more = 0) {
  return index_of(raised(y), more);
}

#if defined(__AVX2__)
#define ANYBIT_PACKING_SATURATES
// Rounds numbers below 2^31, ties to even. Narrowing saturates the results to bytes.
[[gnu::always_inline]] inline Lanes rounded_to_lanes(const Reals& y) {
#if defined(__AVX512F__)
  return {IntRegister(_mm512_cvtps_epi32(y.parts[0]))};
#else
  return map_registers<Lanes>([&](int i) __attribute__((always_inline)) {
    return IntRegister(_mm256_cvtps_epi32(y.parts[i]));
  });
#endif
}

template <Settling settling>
void saturating_affine(const EpilogueBlock& block) {
  const EpilogueBlock at = block;
  store_indices(at, [&](int pixel, int lane) __attribute__((always_inline)) {
    Reals y = to_reals(accumulators<settling>(at, pixel, lane)) * read<Reals>(at.gains + lane);
    y = y + read<Reals>(at.offsets + lane);
    return rounded_to_lanes(y) + broadcast(at.shift);
  });
}
#endif

template <Settling settling>
void some_affine(const EpilogueBlock& block) {
  const EpilogueBlock at = block;
  const Reals bottom = broadcast(-static_cast<float>(at.shift));
  const Reals top = bottom + broadcast(static_cast<float>(at.levels - 1));
  store_indices(at, [&](int pixel, int lane) __attribute__((always_inline)) {
    const Reals sum = to_reals(accumulators<settling>(at, pixel, lane));
    Reals y = sum * read<Reals>(at.gains + lane);
    y = y + read<Reals>(at.offsets + lane);
    // Clamp first: the bounds are integers, so the order does not matter.
    return nearest(clamped(y, bottom, top), at.shift);
  });
}

// If one sum is close to a threshold, all are searched.
template <Settling settling>
void some_lines(const EpilogueBlock& block) {
  const EpilogueBlock at = block;
  store_indices(at, [&](int pixel, int lane) __attribute__((always_inline)) {
    const Lanes sum = accumulators<settling>(at, pixel, lane);
    Reals y = to_reals(sum) * read<Reals>(at.gains + lane);
    y = y + read<Reals>(at.offsets + lane);
    y = clamped(y, read<Reals>(at.bottoms + lane), read<Reals>(at.tops + lane));
    const Lanes index = nearest(y);
    const Reals off = y - to_reals(index);
    const auto limit = read<Reals>(at.limits + lane);
    const Lanes doubtful = (off >= limit) | (negated(off) >= limit) |
                           (sum < read<Lanes>(at.lows + lane)) |
                           (sum >= read<Lanes>(at.highs + lane));
    if (!has_negative(doubtful)) return index;
    return searched(at, sum, lane);
  });
}

void lines(const EpilogueBlock& at) {
  if (at.settling == Settling::raw) some_lines<Settling::raw>(at);
  else some_lines<Settling::general>(at);
}

void affine(const EpilogueBlock& at) {
#if defined(ANYBIT_PACKING_SATURATES)
  if (at.saturates) {
    if (at.settling == Settling::bare) return saturating_affine<Settling::bare>(at);
    if (at.settling == Settling::plain) return saturating_affine<Settling::plain>(at);
    return saturating_affine<Settling::general>(at);
  }
#endif
  if (at.settling == Settling::bare) some_affine<Settling::bare>(at);
  else if (at.settling == Settling::plain) some_affine<Settling::plain>(at);
  else some_affine<Settling::general>(at);
}

void table(const EpilogueBlock& at) {
  store_indices(at, [&](int pixel, int lane) __attribute__((always_inline)) {
    alignas(64) std::int32_t sums[lane_count], indices[lane_count] = {};
    write(sums, accumulators(at, pixel, lane));
    for (int i = 0; i < lane_count && lane + i < at.channels; ++i)
      indices[i] = at.entries[at.first[lane + i] + sums[i]];
    return read<Lanes>(indices);
  });
}

}  // namespace
