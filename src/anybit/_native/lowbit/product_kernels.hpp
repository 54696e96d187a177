// SPDX-License-Identifier: Apache-2.0
// Interface of the product kernels: plain data, filled in by packed_product.cpp. One set of kernels
// per ISA level.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "program.hpp"
#include "storage.hpp"

namespace anybit::lowbit {

// Channels of a panel of weights: 16 lanes of 32 bits, independent of the register size.
inline constexpr int panel_channels = 16;

// Arithmetic of a product of indices q and weights w, summed over the reduction axis. Names of bit
// schemes end in the number of planes of weights and of activations.
enum class Scheme : std::uint8_t {
  dot8,  // sum of q * w, w in bytes
  dot4,  // w are indices of 4 bits into a table of 16
  dot2,  // w are indices of 2 bits into a table of 4
  dot3,  // of 3 bits, in two planes
  dot1,
  wide8,      // dot8 by 16-bit products, where 8-bit instructions would saturate
  xor11,      // w is -v or v: ones of q ^ (w > 0)
  xor12,      // the same for each plane of q, the second twice
  ternary11,  // w is -v, 0 or v: ones of (w != 0) & (q ^ (w > 0))
  ternary12,
  signs12,  // w is -v or v, q - 1 is -1, 0 or 1: twice the ones where (q - 1) * w < 0
  and21,    // w is v * (m0 - 2 m1): ones of q & m0, less twice those of q & m1
  and22,
  rows11,      // the sums of xor11: nibbles of the source select rows of a table, see RowTable
  rows22,      // w is v * (-2, -1, 0 or 1): sums of -w q, or of w (levels - 1 - q) where w > 0
  depthwise,   // groups of one channel; w in 16 bits, tap by tap or in pairs of taps
  depthwise4,  // the same, w in bytes, four taps together
};
inline constexpr int scheme_count = 17;
inline constexpr int taps_together = 4;

// The panels that `depthwise4` takes together next, of those left in a chunk: at most `most`, which
// is 1, 2 or 4. Four may be one more than there are.
constexpr int panels_of_taps(std::int64_t left, int most) {
  return most == 4 && left >= 3 ? 4 : most >= 2 && left >= 2 ? 2 : 1;
}

constexpr bool is_dot(Scheme scheme) { return scheme <= Scheme::wide8; }

// Bits of a weight of a dot product in memory.
constexpr int bits_of_index(Scheme scheme) {
  return scheme == Scheme::dot4   ? 4
         : scheme == Scheme::dot3 ? 3
         : scheme == Scheme::dot2 ? 2
         : scheme == Scheme::dot1 ? 1
                                  : 8;
}

// Values of a channel in a step of a dot product, and bytes of a step of 16 channels.
constexpr int values_per_step(Scheme scheme) {
  return scheme == Scheme::dot3 ? 32 : 32 / bits_of_index(scheme);
}
constexpr int bytes_per_step(Scheme scheme) { return scheme == Scheme::dot3 ? 192 : 64; }
constexpr bool is_depthwise(Scheme scheme) { return scheme >= Scheme::depthwise; }
constexpr bool is_rows(Scheme scheme) {
  return scheme == Scheme::rows11 || scheme == Scheme::rows22;
}

// Partial sums of the lower and of the upper nibble of a byte of the source, for all nibbles of
// weights: two rows of 16 bytes, which one index finds.
struct RowTable {
  alignas(64) std::uint8_t entries[256][2][16];
};

// A block of pixels times adjacent panels.
struct SumBlock {
  const std::byte* const* pixels;  // start of the window of each pixel
  int count;
  const std::byte* weights;  // of the first panel
  std::ptrdiff_t panel;      // bytes from one panel to the next
  int panels;
  const std::ptrdiff_t* segments;  // offsets of the contiguous segments of a window
  int segment_count;
  int steps;                  // per segment
  int narrow_steps;           // steps until narrow sums must be widened
  int most_extras;            // of split pairs, see packed_weights.hpp; -1 leaves them out
  const std::int8_t* values;  // table of 16 weights for indices
  const RowTable* rows;       // of schemes that select rows
  std::int32_t* sums;         // [pixel][stride]
  std::int16_t* shorts;       // the same for kernels that store the low 16 bits of the sums
  std::ptrdiff_t stride;
  bool fresh_weights;  // whether weights may differ from the previous call of this thread
  bool adds = false;   // whether to add to the sums that are stored; only within a kernel
};

// Winograd's algorithm, see winograd.hpp: edges of a square of outputs and of the square of inputs
// that these depend on, and the number of transformed inputs.
inline constexpr int winograd_outputs = 4, winograd_inputs = 6;
inline constexpr int winograd_positions = winograd_inputs * winograd_inputs;

// Inputs of one square.
struct WinogradSource {
  const std::byte* lines[winograd_inputs];  // addresses of column 0
  std::ptrdiff_t columns[winograd_inputs];  // offsets
  std::int64_t channels;                    // bytes of up to 32 more are readable
  std::int16_t* to;                         // [position][channel]
  std::ptrdiff_t position;                  // from one position to the next
};

// Sums of one square.
struct WinogradSums {
  const std::int32_t* sums;  // [position][channel]
  std::ptrdiff_t position;   // from one position to the next
  int channels;              // whole panels
  int lines, columns;        // of the square that are wanted
  std::int32_t* to;
  std::ptrdiff_t line, pixel;  // strides
};

// A block of pixels times adjacent panels of weights that have a scale per block of channels, see
// block_stage.cpp.
struct BlockSums {
  const std::byte* const* pixels;  // indices of each pixel
  int count;
  std::uint8_t offset;          // which turns indices into signed bytes
  const std::byte* weights;     // of the first panel
  std::ptrdiff_t panel, bytes;  // from one panel to the next, from one block to the next
  int panels;
  std::ptrdiff_t block;                  // channels
  int blocks, steps, last_steps;         // steps of the last block
  const std::int32_t *ones, *last_ones;  // four bytes per step: 1 for the channels of the block
  std::int32_t lowest;                   // weight of the index 0 where blocks have no zero-points
  const std::byte* zero_points;   // of weights, [panel][block][channel]; null if there are none
  const std::int32_t* zeros;      // per pixel: subtracted from the bytes; null for 0
  const std::byte* prepared;      // signed bytes of all pixels; null if there are none
  std::ptrdiff_t prepared_bytes;  // from one pixel to the next
  const std::int32_t* code_sums;  // [pixel][block]: as `prepare_blocks` writes them
  float* sums;                    // [pixel][stride]
  std::ptrdiff_t stride;
};

inline constexpr int most_block_pixels = 64;

// Epilogues work on [pixel][channel] of a chunk, which begins at a multiple of 64 channels.
inline constexpr int chunk_channels = 64;

struct EpilogueStep {
  Operation operation;
  const float* operands = nullptr;  // per channel, from channel 0
  // Which of the arrays of a block has the operands of a pixel, and whether one is for all
  // channels; -1 if the operands above are those of all pixels.
  int array = -1;
  bool one_channel = false;
};

// Most arrays that an epilogue reads.
inline constexpr int most_step_arrays = 4;

// First operation of an epilogue on a sum.
enum class Settling : std::uint8_t {
  general,  // (sum + addend) * scale + constant
  plain,    // sum + constant
  bare,     // the sum
  raw,      // sum ^ scale, which is 0 or -1; the rest is folded into thresholds
};

// Constants of a panel of packed pieces. The distance of a sum from the pivot, the sum less the
// pivot with all bits inverted where it is negative, is added to the entry of its bucket: the bits
// above the lower 23 are the index. Pieces are searched if the result is negative. Sums are clamped
// to [low, high]. Buckets before the pivot are larger or smaller by `more` bits.
struct PiecePanel {
  alignas(64) std::int32_t lows[panel_channels];
  std::int32_t highs[panel_channels], pivots[panel_channels], shifts[panel_channels],
      more[panel_channels];
};

// Constants of a panel of pieces on a curve. The place of a sum is clamp(sum * gain + offset, low,
// high); the nearest integer, at most the last one, is a segment of the curve. A cubic polynomial
// of the distance from that integer, times the scale and plus the zero, rounds to the index if it
// is at most `limits` off the rounded number. Other pieces are searched.
inline constexpr int curve_segments = 32;
struct CurvePanel {
  alignas(64) float gains[panel_channels] = {};
  float offsets[panel_channels] = {}, lows[panel_channels] = {}, highs[panel_channels] = {},
        scales[panel_channels] = {}, zeros[panel_channels] = {}, limits[panel_channels] = {};
};

// Arguments of an epilogue. Arrays start at the chunk and are padded to panels.
struct EpilogueBlock {
  const std::int32_t* sums;
  std::ptrdiff_t stride;
  int count;
  int channels;
  Settling settling;
  const std::int32_t* scales;
  const std::int32_t* const* constants;  // per pixel: constants of its class, from channel 0
  std::ptrdiff_t first_channel;          // of the chunk, for constants and steps
  const std::int32_t* addends;           // per pixel

  std::byte* const* targets;  // per pixel: at the first channel of the chunk
  Coding coding;
  int levels;
  bool saturates;  // see PackedEpilogue

  // [panel][threshold][16], [channel][256] where there are many, or [channel][512] starts of pieces
  const std::int32_t* thresholds;
  const float* gains;  // or the scales of Arithmetic and Rounded
  const float* offsets;
  // For lines: an index is exact if the fitted value is less than `limits` off and the sum is in
  // [low, high). Indices are clamped to [bottom, top].
  const float *limits, *bottoms, *tops;
  // For rounded lines, whose offsets include the shift: an index is exact if the fitted value is at
  // most `limits` off.
  const float* slopes;
  const std::int32_t *lows, *highs;
  // Buckets of sums: see Buckets. Null if many thresholds are searched by halving.
  const std::uint8_t* bucket_codes;
  const std::int32_t *bucket_lows, *bucket_highs, *bucket_shifts;
  int bucket_steps;
  const std::int32_t* packed_steps;  // see PackedSteps, with the lows, highs and shifts above
  int packed_count;                  // buckets of a channel
  const std::uint8_t* piece_codes;   // [channel][512]
  const PiecePanel* piece_panels;
  int side_buckets;  // from the pivot on; those before it follow
  const CurvePanel* curve_panels;
  const float (*curve)[curve_segments];  // coefficients from the constant to the cubic one
  std::int32_t shift;
  const std::int64_t* first;  // per channel: start of its table minus its first accumulator
  const std::uint8_t* entries;
  const EpilogueStep* steps;
  int step_count;
  const float* const* arrays[most_step_arrays];  // per pixel: from channel 0
  float* const* floats;                          // per pixel
  std::ptrdiff_t float_channel;
};

// Epilogues of a block of 32 channels whose accumulators, less a center per channel, fit 16 bits.
enum class ShortForm : std::uint8_t {
  none,        // computed in 32 bits
  scaled,      // upper 16 bits of (clamp(x) * factor + term) * multiplier, shifted right
  thresholds,  // number of thresholds below x
  affine,      // as Affine, in float32
};
inline constexpr int short_channels = 32;  // of a block

// Arguments of an epilogue on the low 16 bits of sums. Arrays start at the chunk and are padded to
// chunks. The accumulator less its center is x = (sum + addend) * scale + constant.
struct ShortEpilogueBlock {
  const std::int16_t* sums;
  std::ptrdiff_t stride;
  int count;
  int channels;
  Settling settling;  // general, plain or bare
  const std::int16_t* scales;
  // The constants of a class of windows are as far from those of the first class as in 32 bits.
  const std::int16_t* constants;
  const std::int32_t* first_class;
  const std::int32_t* const* classes;  // per pixel
  const std::int32_t* addends;         // per pixel

  std::byte* const* targets;  // per pixel
  std::ptrdiff_t place;       // of the chunk, from there
  Coding coding;
  int levels;

  const ShortForm* forms;               // per block
  const std::int16_t *lows, *highs;     // scaled: bounds of x
  const std::int16_t *factors, *terms;  // unsigned, as the multipliers
  const std::int16_t* multipliers;
  int right_shift;
  const std::int16_t* thresholds;  // [block][threshold][32], each less 1
  const float *gains, *offsets;
  const std::int32_t* centers;
  std::int32_t shift;
};

enum class EpilogueKind : std::uint8_t {
  thresholds,
  many_thresholds,
  lines,  // many thresholds, and a line fit that avoids most searches
  affine,
  table,
  arithmetic,
  rounded,
  rounded_lines,  // rounded, and a line fit that avoids most replays
  packed_steps,   // many thresholds, at most one per bucket of sums
  pieces,
  packed_pieces,  // pieces, by buckets of sums; few have several starts
  curved_pieces,  // pieces, and a curve that avoids most searches
};
inline constexpr int epilogue_count = 12;

constexpr bool has_many_thresholds(EpilogueKind kind) {
  return kind == EpilogueKind::many_thresholds || kind == EpilogueKind::lines;
}

// Buckets per channel of many thresholds.
inline constexpr int bucket_count = 512;

// Up to this number of levels, thresholds are compared one by one.
inline constexpr int few_levels = 17;

// Tables of 256 bytes for 64 indices, and which indices belong to each.
struct ChannelChunk {
  static constexpr int most_tables = 16;
  struct Table {
    const std::uint8_t* entries = nullptr;  // aligned to 64 bytes
    std::uint64_t bytes = 0;
  };
  Table tables[most_tables];
  int count = 0;
};

struct ProductKernels {
  // Segments of a dot product are padded with weights of 0 to a multiple of this number of
  // activation bytes.
  int dot_bytes = 4;
  // Whether to unpack weights to bytes once for many blocks of pixels.
  bool spreads_weights = false;
  // Whether to copy short runs of windows together.
  bool gathers_windows = false;
  // Whether products of bytes take less time than unpacking weights for them.
  bool prefers_bytes = false;
  // Pixels per block if the weights of a chunk exceed the L1 cache.
  int block_pixels = 32;
  // The same if the weights fit as well.
  int near_pixels = 32;
  // Whether dot products prefer windows at equal strides, at the cost of some unused windows.
  bool wants_even_windows = false;
  // Called after the last sums of a thread.
  void (*end)() = nullptr;
  // Whether `dot8`, `dot4` and `dot2` are exact for indices and weights up to these.
  bool (*dot_is_exact)(int largest_index, int largest_weight) = nullptr;
  // `dot8`, `dot4` and `dot2` in sums of 16 bits, which hold `narrow_steps`. Null where the level
  // has instructions that add to 32 bits at once.
  std::array<void (*)(const SumBlock&), 3> short_dots{};
  // `depthwise` of two taps at a time, of weights in bytes, in sums of 16 bits. Where it is not
  // null, the weights of `depthwise` are pairs of taps as well.
  void (*short_tap_pairs)(const SumBlock&) = nullptr;
  // The most panels that `depthwise4` takes together, see `panels_of_taps`.
  int tap_panels = 1;
  // `wide8` where pairs of products that may exceed 16 bits are split. Null where no instruction
  // adds pairs in 16 bits, or where none is needed.
  void (*split_pairs)(const SumBlock&) = nullptr;
  // Sums of pairs of numbers of 16 bits above -2^15: `pixels` has them as bytes, `weights` as
  // panels of vectors of 16 pairs. One segment.
  void (*words)(const SumBlock&) = nullptr;
  // Transforms of Winograd's algorithm before and after `words`, which multiplies some panels at a
  // time, best by multiples of some squares. Null where it is not used.
  void (*winograd_source)(const WinogradSource&) = nullptr;
  void (*winograd_sums)(const WinogradSums&) = nullptr;
  int winograd_panels = 1, winograd_rows = 6;
  // Null for schemes that the level lacks.
  std::array<void (*)(const SumBlock&), scheme_count> sums{};
  std::array<void (*)(const EpilogueBlock&), epilogue_count> epilogues{};
  // Sums whose low 16 bits are exact, and their epilogue. Null where the level computes in 32 bits.
  std::array<void (*)(const SumBlock&), scheme_count> short_sums{};
  void (*short_epilogue)(const ShortEpilogueBlock&) = nullptr;
  // Pixels times weights in blocks that are multiplied together if they are prepared.
  int block_rows = 1;
  // Turns indices into signed bytes, and adds these up by blocks: the sums, or what zero-points of
  // weights are multiplied by.
  void (*prepare_blocks)(const BlockSums&, const std::byte* indices, std::int64_t depth,
                         std::byte* to, std::int32_t* sums) = nullptr;
  // Sums of weights in blocks, by their bits less 1.
  std::array<void (*)(const BlockSums&), 8> blocks{};
  // For `signs12`, per pixel: minus the number of nonzero activations in its window, including the
  // padding after the last channel.
  void (*less_signs)(const SumBlock&, std::int32_t* addends) = nullptr;
  // to[i] = the entry at from[i] of its table; chunks of 64 bytes follow each other in turn. Null
  // where the level looks up a byte at a time.
  void (*look_up_channels)(const ChannelChunk* chunks, std::int64_t chunk_count,
                           const std::uint8_t* from, std::int64_t n, std::uint8_t* to) = nullptr;
  // `wide8` of many pixels, whose weights have 16 bits, see `widen_weights`. Null where it is not
  // faster.
  void (*wide_words)(const SumBlock&) = nullptr;
};

}  // namespace anybit::lowbit
