// SPDX-License-Identifier: Apache-2.0
// Loops over the elements of a line, compiled once per ISA level.
#pragma once

#include <cstddef>
#include <cstdint>

#include "_native/isa/levels.hpp"
#include "program.hpp"
#include "storage.hpp"

namespace anybit::lowbit {

// Maps float32 to indices, by thresholds or by a formula proven equal for every float32 but NaN.
// See quantizer.cpp for the proof.
struct ThresholdMap {
  enum class Method : std::uint8_t {
    count,    // compare with all thresholds
    affine,   // rint(clamp(x * gain + offset)), exact
    divide,   // rint(clamp(x / gain + offset)), exact
    correct,  // as `affine`, off by one only where rounding moves by `limit` or more
    search,   // binary search of the thresholds
  };
  Method method = Method::search;
  int index_count = 0;
  bool decreasing = false;  // index = index_count - 1 - count
  float gain = 0, offset = 0, lowest = 0, limit = 0;
  // 1 / gain, where three fused steps may divide; 0 elsewhere.
  float reciprocal = 0;
  // -infinity, the thresholds in ascending order, and NaN as padding up to a power of two.
  // Borrowed.
  const float* thresholds = nullptr;
};

// Windows of `lines` x `elements` inside a tensor; strides are in bytes.
struct WindowRow {
  const std::byte* from = nullptr;  // first element of the first window
  std::int64_t lines = 1, elements = 1;
  std::int64_t line = 0, element = 0;    // strides
  std::int64_t windows = 1, stride = 0;  // number of windows, and their stride
  std::int64_t pixel = 0;
};

// index = rint(clamp(y / divisor + offset)) + shift; NaN becomes the lower bound. y is the sum or
// product of first * gain and second * other_gain, where first and second are indices minus their
// zeros.
struct PairArithmetic {
  std::int32_t zero = 0, other_zero = 0;
  float gain = 0, other_gain = 0, offset = 0, divisor = 1, lowest = 0, highest = 0;
  std::int32_t shift = 0;
};

// Values (index - zero) * scale.
struct ScaledValues {
  std::int32_t zero = 0;
  float scale = 0;
};

// Largest magnitudes of positive and negative numbers; infinity for both if one is NaN.
struct Magnitudes {
  float above = 0, below = 0;
};

// index = rint(clamp(x / scale + zero)) - lowest; NaN becomes the index of `nan`, a number within
// the bounds.
struct DynamicLine {
  float scale = 1, zero = 0, nan = 0, lowest = 0, highest = 0;
};

// Constants of a scale: min(max(w, least) / steps, most), or infinity if w is infinite.
struct ScaleConstants {
  float steps = 1, least = 1, most = 1;
  bool asymmetric = false;  // whether w is the width of the range, and not the largest magnitude
};

// Codes of lines that have a scale each, or of lines with the same scale.
struct DynamicCodes {
  ScaleConstants constants;
  float lowest = 0, highest = 0;
  const Magnitudes* all = nullptr;  // of lines with the same scale
};

// Part of a matrix.
struct MatrixBlock {
  const float* x = nullptr;
  std::int64_t stride = 0;  // from one row to the next
  std::int64_t rows = 0, columns = 0;
};

// Lines that are quantized side by side.
inline constexpr std::int64_t lines_together = 16;

// Sums of a block of rows, and their scales.
struct SumScales {
  const std::int32_t* sums = nullptr;
  std::int64_t sum_stride = 0;
  const float *of_rows = nullptr, *of_columns = nullptr;
  std::int64_t rows = 0, columns = 0;
  float* to = nullptr;
  std::int64_t stride = 0;
  float factor = 1;
};

// Constants of a LayerNorm: one gain and offset per channel.
struct Normalization {
  const float *gains = nullptr, *offsets = nullptr;
  float epsilon = 0;
};

// Bytes that a block of a pixel takes from 16 adjacent ones.
inline constexpr std::int64_t permuted_bytes = 16;
struct BytePart {
  std::uint8_t places[permuted_bytes];  // among those of the source; 128 where none is taken
  std::int32_t from, to;                // first byte of the source and of the block
};

// Pixels whose bytes are in another order. All arrays are borrowed.
struct BytePermutation {
  const BytePart* parts = nullptr;     // of one block after the other
  const std::int32_t* ends = nullptr;  // per block: the number of parts up to its last one
  std::int64_t blocks = 0;
  const std::int32_t* columns = nullptr;  // per pixel: that of the source
  std::int64_t pixels = 0;
  std::int64_t source_pixel = 0, target_pixel = 0;  // strides
};

struct ElementLoops {
  static constexpr Level serving(Level level) { return without_integer_extensions(level); }

  // Computes the indices of n numbers; returns whether one is NaN, whose index is undefined.
  bool (*indices)(const ThresholdMap& map, const float* x, std::int64_t n, std::uint8_t* to);

  // Packs indices as bits (2 levels), planes or nibbles (up to 4 levels); padding bits are 0.
  // Returns whether a number is NaN.
  bool (*bits)(const ThresholdMap& map, const float* x, std::int64_t n, std::byte* to);
  bool (*planes)(const ThresholdMap& map, const float* x, std::int64_t n, std::byte* to);
  bool (*nibbles)(const ThresholdMap& map, const float* x, std::int64_t n, std::byte* to);

  // Maximum over adjacent windows, per coding.
  void (*max_pool)(const WindowRow& windows, std::byte* to);
  void (*max_pool_bits)(const WindowRow& windows, std::byte* to);
  void (*max_pool_planes)(const WindowRow& windows, std::byte* to);
  void (*max_pool_nibbles)(const WindowRow& windows, std::byte* to);

  // Pixels of a line whose bytes are in another order.
  void (*permute)(const BytePermutation& permutation, const std::byte* line, std::byte* to);

  // to[i] = table[from[i]]; the table of bytes has 256 entries.
  void (*lookup)(const std::uint8_t* table, const std::uint8_t* from, std::int64_t n,
                 std::uint8_t* to);
  void (*values)(const float* table, const std::uint8_t* from, std::int64_t n, float* to);
  void (*scaled)(const ScaledValues& values, const std::uint8_t* from, std::int64_t n, float* to);

  // to[i] = table[first[i] * levels + second[i]]
  void (*combine)(const std::uint8_t* table, std::int32_t levels, const std::uint8_t* first,
                  const std::uint8_t* second, std::int64_t n, std::uint8_t* to);

  void (*add)(const PairArithmetic& sum, const std::uint8_t* first, const std::uint8_t* second,
              std::int64_t n, std::uint8_t* to);
  void (*multiply)(const PairArithmetic& product, const std::uint8_t* first,
                   const std::uint8_t* second, std::int64_t n, std::uint8_t* to);

  // to[i] = x[i] (operation) c[i], or all with c[0], which sigmoid and GELU do not read; `to` is
  // another array, or x itself.
  void (*arithmetic)(Operation operation, const float* x, const float* c, bool single,
                     std::int64_t n, float* to);

  Magnitudes (*find_magnitudes)(const float* x, std::int64_t n);
  void (*quantize)(const DynamicLine& line, const float* x, std::int64_t n, std::uint8_t* to);

  // Codes of rows less their zero-points, in 16 bits, and the scales of the rows. A row of the
  // target has `line` numbers, a multiple of `lines_together`; those after the codes become 0.
  void (*quantize_rows)(const DynamicCodes& codes, const MatrixBlock& block, std::int16_t* to,
                        std::int64_t line, float* scales);
  // The same of up to `lines_together` columns, or rows, with pairs of codes of all lines side by
  // side. Missing lines and the second code of the last odd pair are 0, missing scales 1.
  void (*quantize_column_panel)(const DynamicCodes& codes, const MatrixBlock& block,
                                std::int32_t* to, float* scales);
  void (*quantize_row_panel)(const DynamicCodes& codes, const MatrixBlock& block, std::int32_t* to,
                             float* scales);
  // y = ((float(sum) * smaller) * larger) * factor, of the scales of its row and column.
  void (*scale_sums)(const SumScales& at);

  // Softmax and layer normalization of pixels whose channels are contiguous.
  void (*softmax)(const float* x, std::int64_t pixels, std::int64_t channels, float* to);
  void (*normalize)(const Normalization& constants, const float* x, std::int64_t pixels,
                    std::int64_t channels, float* to);

  // lanes[i % 4][c] += x[i][c] for pixels i in turn and c < count <= 16. Pixels are `stride` apart.
  void (*add_pixels)(const float* x, std::int64_t pixels, std::int64_t stride, int count,
                     float (&lanes)[4][16]);
};

}  // namespace anybit::lowbit
