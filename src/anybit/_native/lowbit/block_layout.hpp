// SPDX-License-Identifier: Apache-2.0
// Planes of the weights of products in blocks: the lowest bits of indices, up to a power of two of
// them, are one plane, those above are further ones. A group of steps has its planes in turn.
#pragma once

namespace {

// Bits of the lowest plane.
[[maybe_unused]] constexpr int low_plane(int bits) {
  return bits >= 8 ? 8 : bits >= 4 ? 4 : bits >= 2 ? 2 : 1;
}

// Vectors of a plane of some bits for a group of steps.
[[maybe_unused]] constexpr int plane_vectors(int bits, int steps) { return (bits * steps + 7) / 8; }

[[maybe_unused]] constexpr int group_vectors(int bits, int steps) {
  int vectors = 0;
  for (; bits > 0; bits -= low_plane(bits)) vectors += plane_vectors(low_plane(bits), steps);
  return vectors;
}

}  // namespace
