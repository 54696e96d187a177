// SPDX-License-Identifier: Apache-2.0
// Loops over float64 matrices that are compiled once per ISA level.
#pragma once

#include <cstdint>

#include "_native/isa/levels.hpp"

namespace anybit {

// Rows and columns of a tile of sums; a level takes as many columns as two of its registers
// hold: 4, 8 or 16.
inline constexpr std::int64_t tile_rows = 4;
inline constexpr std::int64_t most_tile_columns = 16;

// Kernel family of matrices. Each sum is added up in the order of its terms, one after another, and
// products are rounded: tiles and registers of any size give the same bits.
struct MatrixKernels {
  static constexpr Level serving(Level level) { return of_loops(level); }

  std::int64_t tile_columns;
  // sums[i][j] += a[k][i] * b[k][j] for a tile: a has tile_rows per term, b tile_columns; `step` is
  // from one row of sums to the next.
  void (*add_tile)(const double* a, const double* b, std::int64_t terms, double* sums,
                   std::int64_t step);
  // row[j] += factors[k * factor_step] * rows[k * row_step + j], from the last k to the first.
  void (*add_rows)(const double* factors, std::int64_t factor_step, const double* rows,
                   std::int64_t row_step, std::int64_t count, double* row, std::int64_t columns);
  // to[j] = from[j], rounded to float32.
  void (*narrow)(const double* from, float* to, std::int64_t count);
  // differences[j] -= subtracted[j].
  void (*subtract)(const float* subtracted, double* differences, std::int64_t count);
};

}  // namespace anybit
