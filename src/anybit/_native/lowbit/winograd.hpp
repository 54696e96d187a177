// SPDX-License-Identifier: Apache-2.0
// 3x3 convolutions by Winograd's algorithm F(4x4, 3x3), in exact integers.
//
// A square of 4x4 outputs depends on 6x6 inputs. Along one axis, the outputs y of inputs x and
// weights w are y = A (G w * B x), with products of the transformed weights and inputs. These are
// polynomials at the points 0, 1, -1, 2, -2 and infinity. B is a matrix of integers (see
// kernels/winograd.hpp). Factors of their rows make G and A integers, too:
//   G   6 0 0   -1 -1 -1   -1 1 -1   1 2 4   1 -2 4   0 0 6
//   A   1 4 4 1 1 0   0 2 -2 1 -1 0   0 1 1 1 1 0   0 1 -1 2 -2 1
// The rows of A then return 24, 12, 6 and 6 times an output.
//
// Along both axes, inputs of codes up to 255 become numbers up to 255 * 68, and weights up to
// 128 * 49: pairs of products of 16 bits are exact, and are added modulo 2^32. The results are
// 9 * 2^s times a sum of the convolution modulo 2^32, with s up to 6. The inverse of 9 modulo 2^32
// and a shift to the right by s return this sum if it has at most 26 bits, which the weights show.
//
// That takes 36 products instead of 144, and returns the same sums as direct products.
#pragma once

#include "packed_weights.hpp"

namespace anybit::lowbit {

struct Winograd {
  // Transformed weights: [panel][position][step][16 target channels][2 source channels].
  Aligned<std::byte> weights;
  std::ptrdiff_t panel = 0;   // bytes
  int steps = 0;              // pairs of source channels
  std::int64_t channels = 0;  // of a transformed input, padded
  int most_tiles = 1;         // squares that are computed together

  bool used() const { return weights.size() > 0; }

  // Numbers of a position of the transformed inputs of some squares, and of all positions.
  std::int64_t position(std::int64_t tiles) const;
  std::int64_t inputs(std::int64_t tiles) const { return winograd_positions * position(tiles); }
};

// Words after a position of the transformed inputs. Positions are not multiples of 4 KiB apart:
// numbers of all positions that are written together map to different cache sets.
inline constexpr std::int64_t winograd_gap = 32;

// Source channels up to which the transformed inputs of a square fit the stack.
inline constexpr std::int64_t most_winograd_channels = 1024;
inline constexpr int most_winograd_tiles = 18;

// Whether a product can be computed so, and takes less time than directly by a scheme.
bool prefers_winograd(const ProductTask& task, const Weights& weights, const WeightForm& form,
                      Scheme scheme, Level level);

// Throws Error if the transformed weights exceed the limit of the task.
Winograd pack_winograd(const ProductTask& task, const Weights& weights,
                       const ProductKernels& kernels);

}  // namespace anybit::lowbit
