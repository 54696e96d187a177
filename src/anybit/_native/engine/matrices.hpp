// SPDX-License-Identifier: Apache-2.0
// Products of float64 matrices, and the rounding of terms in turn. One thread computes; results
// have the same bits on every processor.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace anybit {

// Steps count elements.
struct MatrixView {
  double* data;
  std::int64_t rows, columns;
  std::int64_t row_step, column_step;

  double& at(std::int64_t row, std::int64_t column) const {
    return data[row * row_step + column * column_step];
  }
  MatrixView part(std::int64_t row, std::int64_t column, std::int64_t row_count,
                  std::int64_t column_count) const {
    return {&at(row, column), row_count, column_count, row_step, column_step};
  }
};

// sums += a b, or sums -= a b. Sums are contiguous along rows, and overlap neither factor.
void add_product(const MatrixView& sums, const MatrixView& a, const MatrixView& b, bool subtract);

// Terms of weights to round, from the last to the first.
struct TermRounding {
  std::int64_t terms, groups, columns;
  double* weights;                          // [terms, groups, columns]; becomes the rounding errors
  std::vector<MatrixView> triangles;        // unit upper triangular, one per group
  float* rounded;                           // [terms, groups, columns]; becomes the rounded weights
  std::function<void(std::int64_t)> round;  // rounds a term of `rounded` in place
};

// Rounds each term after adding the rounding errors of later ones, times the triangle's elements.
void round_terms(const TermRounding& terms);

}  // namespace anybit
