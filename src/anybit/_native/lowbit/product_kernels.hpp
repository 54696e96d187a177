// SPDX-License-Identifier: Apache-2.0
// What the kernels of products take: plain data, filled in by packed_product.cpp. One family per level.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "program.hpp"
#include "storage.hpp"

namespace anybit::lowbit {

// Channels of a panel of weights: 16 lanes of 32 bits, whatever registers there are.
inline constexpr int panel_channels = 16;

// How indices meet weights; q is an index, w a weight, sums are over K. Names of bit schemes end in
// the numbers of planes, of the weights and of the activations.
enum class Scheme : std::uint8_t {
  dot8,       // sum of q * w, w in bytes
  dot4,       // w are indices of 4 bits into a table of 16
  dot2,       // w are indices of 2 bits into a table of 4
  wide8,      // dot8 where no instruction has products wide enough
  xor11,      // w is -v or v: ones of q ^ (w > 0)
  xor12,      // the same for each plane of q, the second twice
  ternary11,  // w is -v, 0 or v: ones of (w != 0) & (q ^ (w > 0))
  ternary12,
  signs12,  // w is -v or v, q - 1 is -1, 0 or 1: twice the ones where (q - 1) * w < 0
  and21,    // w is v * (m0 - 2 m1): ones of q & m0, less twice those of q & m1
  and22,
  depthwise,   // groups of one channel; w in 16 bits, tap by tap
  depthwise4,  // the same, w in bytes, four taps together
};
inline constexpr int scheme_count = 13;
inline constexpr int taps_together = 4;

constexpr bool is_dot(Scheme scheme) { return scheme <= Scheme::wide8; }
constexpr bool is_depthwise(Scheme scheme) { return scheme >= Scheme::depthwise; }

// A block of pixels times neighbouring panels.
struct SumBlock {
  const std::byte* const* pixels;  // where the window of each pixel begins
  int count;
  const std::byte* weights;  // of the first panel
  std::ptrdiff_t panel;      // bytes from one panel to the next
  int panels;
  const std::ptrdiff_t* segments;  // runs of the window in memory, from its beginning
  int segment_count;
  int steps;                  // per segment
  int narrow_steps;           // so many until narrow sums must be widened
  const std::int8_t* values;  // 16 weights that indices stand for
  std::int32_t* sums;         // [pixel][stride]
  std::ptrdiff_t stride;
  bool fresh_weights;  // whether they may be others than in the call before, by the same thread
};

inline constexpr int most_block_pixels = 64;

// Tails work on [pixel][channel] of a chunk, channels beginning at a multiple of 64.
inline constexpr int chunk_channels = 64;

struct TailStep {
  Operation operation;
  const float* operands;  // per channel, from the first one of all chunks on
};

// What a tail makes of a sum first.
enum class Settling : std::uint8_t {
  general,  // (sum + addend) * scale + constant
  plain,    // sum + constant
  bare,     // the sum
  raw,      // sum ^ scale, which is 0 or -1: thresholds take the rest into account
};

// Arrays are those of the chunk, padded to panels.
struct TailBlock {
  const std::int32_t* sums;
  std::ptrdiff_t stride;
  int count;
  int channels;
  Settling settling;
  const std::int32_t* scales;
  const std::int32_t* const* constants;  // per pixel: its class's at channel 0
  std::ptrdiff_t first_channel;          // of the chunk, for the constants and the steps
  const std::int32_t* addends;           // per pixel

  std::byte* const* targets;  // per pixel: at the first channel of the chunk
  Coding coding;
  int levels;

  const std::int32_t* thresholds;  // [panel][threshold][16], or [channel][256] where there are many
  const float* gains;              // or scales of Arithmetic and Rounded
  const float* offsets;
  // Of lines: an index is right if the product is less than `limits` off it, and the sum is in
  // [low, high). Below the bottom and above the top all are one.
  const float *limits, *bottoms, *tops;
  const std::int32_t *lows, *highs;
  std::int32_t shift;
  const std::int64_t* first;  // per channel: where its table begins, less its first accumulator
  const std::uint8_t* entries;
  const TailStep* steps;
  int step_count;
  float* const* floats;  // per pixel
  std::ptrdiff_t float_channel;
};

enum class TailKind : std::uint8_t {
  thresholds,
  many_thresholds,
  lines,  // many thresholds, and a product beside which few of them are looked at
  affine,
  table,
  arithmetic,
  rounded,
};
inline constexpr int tail_count = 7;

constexpr bool has_many_thresholds(TailKind kind) {
  return kind == TailKind::many_thresholds || kind == TailKind::lines;
}

// Up to so many levels, thresholds are compared one by one.
inline constexpr int few_levels = 17;

struct ProductKernels {
  // Each segment of a dot product is filled up with weights of 0 to a multiple of so many bytes of
  // activations.
  int dot_bytes = 4;
  // Whether packed weights are best made bytes once for many blocks of pixels.
  bool spreads_weights = false;
  // So many pixels at a time where the weights of a chunk do not stay in the nearest cache.
  int block_pixels = 32;
  // Whether dot products want windows at equal distances, at the price of some that are none.
  bool wants_even_windows = false;
  // After the last sums of a thread for now.
  void (*end)() = nullptr;
  // Whether `dot8` and the packed ones are exact for indices and weights up to these.
  bool (*dot_is_exact)(int largest_index, int largest_weight) = nullptr;
  // A scheme that this level has none for is null.
  std::array<void (*)(const SumBlock&), scheme_count> sums{};
  std::array<void (*)(const TailBlock&), tail_count> tails{};
  // For `signs12`, of each pixel: less the number of activations in its window that are not 0, the
  // gaps behind the last channel included.
  void (*less_signs)(const SumBlock&, std::int32_t* addends) = nullptr;
};

}  // namespace anybit::lowbit
