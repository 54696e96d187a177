// SPDX-License-Identifier: Apache-2.0
// Constants of the epilogue of a product: everything after its sums.
#pragma once

#include <vector>

#include "packed_weights.hpp"
#include "product_kernels.hpp"
#include "program.hpp"

namespace anybit::lowbit {

// Returns a / b, rounded up; b > 0.
constexpr std::int64_t quotient_up(std::int64_t a, std::int64_t b) {
  return a / b + (a % b > 0 ? 1 : 0);
}

// Buckets of sums, per channel: (clamp(sum, low, high) - low) >> shift is the bucket, for whose
// first sum `codes` has the number of thresholds reached. At most `steps` more are reached within a
// bucket.
struct Buckets {
  Aligned<std::uint8_t> codes;  // [channel][bucket_count]
  Aligned<std::int32_t> lows, highs, shifts;
  int steps = 0;
};

// The same where a bucket has at most one threshold: 24 bits of an entry plus the distance of a sum
// from the start of its bucket exceed 24 bits where the threshold is reached. The bits above are
// the code before it. `lows` are one less than the first threshold.
struct PackedSteps {
  Aligned<std::int32_t> entries;  // [16 channels][bucket][16]
  int count = 0;                  // buckets of a channel
};

// See CurvePanel.
struct Curve {
  alignas(64) float coefficients[4][curve_segments] = {};
  std::vector<CurvePanel> panels;
};

// Constants of an epilogue. Arrays are per channel, padded to whole chunks.
struct PackedEpilogue {
  EpilogueKind kind = EpilogueKind::thresholds;
  Aligned<std::int32_t> thresholds;
  Aligned<float> gains, offsets;
  Aligned<float> limits, bottoms, tops;  // for lines, see EpilogueBlock
  Aligned<float> slopes;                 // gains of rounded lines
  Aligned<std::int32_t> lows, highs;
  Buckets buckets;     // of many thresholds and lines, where few thresholds share one
  PackedSteps packed;  // of thresholds, or of pieces
  Aligned<std::uint8_t> piece_codes;
  std::vector<PiecePanel> piece_panels;
  int side_buckets = 0;
  Curve curve;
  std::int32_t shift = 0;
  // Whether an affine function or the lines stay within 32 bits, and only the limits of a byte
  // clamp their indices.
  bool saturates = false;
  Aligned<std::int64_t> first;
  std::vector<std::uint8_t> entries;
  std::vector<Aligned<float>> operands;
  std::vector<EpilogueStep> steps;
};

// Solves scale * sum + constant >= threshold for the sum, for the thresholds of a channel. Sums are
// far from the limits of int32; for a negative scale the thresholds are those of ~sum.
void fold_into_thresholds(PackedEpilogue& epilogue, std::int64_t channel, std::int64_t count,
                          std::int64_t scale, std::int64_t constant);

// Replaces a search of many thresholds by a line fit per channel, if the thresholds are close to a
// line. Results do not change.
void fit_lines(PackedEpilogue& epilogue, std::int64_t channels, std::int64_t levels);

// Finds out whether an epilogue saturates, see PackedEpilogue.
void check_saturation(PackedEpilogue& epilogue, std::int64_t channels, std::int64_t levels);

// Replaces many thresholds by packed steps, if there is at most one in each bucket. Sums must be
// smaller than the largest int32. Results do not change.
void pack_steps(PackedEpilogue& epilogue, std::int64_t channels, std::int64_t levels,
                std::int64_t most_bytes);

// Replaces a search of pieces by packed buckets, if few buckets have several starts: these are
// searched. Results do not change.
void pack_pieces(PackedEpilogue& epilogue, std::int64_t channels, std::int64_t most_bytes);

// Divides the sums between many thresholds into buckets. Results do not change.
void make_buckets(PackedEpilogue& epilogue, std::int64_t channels, std::int64_t levels);

// Returns the arguments of an epilogue that are those of all chunks.
EpilogueBlock make_epilogue_block(const PackedEpilogue& epilogue, Coding coding,
                                  std::int64_t levels);

// Sets the constants of the chunk that begins at a channel.
void set_chunk(EpilogueBlock& block, const PackedEpilogue& epilogue, std::int64_t channel);

// Adds operations to an epilogue of floats. Those with an array count them from 0.
void add_steps(PackedEpilogue& epilogue, const std::vector<FloatStep>& steps, std::int64_t channels,
               std::int64_t most_bytes);

// Throws Error if the constants exceed `most_bytes`.
PackedEpilogue pack_epilogue(const Epilogue& epilogue, std::int64_t channels, std::int64_t levels,
                             std::int64_t most_bytes);

}  // namespace anybit::lowbit
