// SPDX-License-Identifier: Apache-2.0
#include "matrices.hpp"

#include <algorithm>
#include <array>

#include "_native/isa/ieee_arithmetic.hpp"
#include "matrix_kernels.hpp"

namespace anybit {
namespace {

// Blocks whose packed copies stay in caches of the second level.
constexpr std::int64_t block_terms = 128, block_columns = 256, block_rows = 32;
// Errors of terms reach earlier blocks of terms together, and those of their own one at a time.
constexpr std::int64_t few_terms = 32;
static_assert(block_terms % few_terms == 0);

// Copies a matrix as [columns / step][rows][step], padded with zeros.
template <std::int64_t step>
void pack(const MatrixView& from, double sign, double* to) {
  for (std::int64_t first = 0; first < from.columns; first += step, to += from.rows * step) {
    const std::int64_t count = std::min(step, from.columns - first);
    const double* const start = &from.at(0, first);
    if (count < step) {
      std::fill_n(to, from.rows * step, 0.0);
      for (std::int64_t row = 0; row < from.rows; ++row)
        for (std::int64_t column = 0; column < count; ++column)
          to[row * step + column] = sign * from.at(row, first + column);
    } else if (from.column_step == 1) {
      for (std::int64_t row = 0; row < from.rows; ++row)
        for (std::int64_t column = 0; column < step; ++column)
          to[row * step + column] = sign * start[row * from.row_step + column];
    } else {
      for (std::int64_t row = 0; row < from.rows; ++row)
        for (std::int64_t column = 0; column < step; ++column)
          to[row * step + column] = sign * start[row * from.row_step + column * from.column_step];
    }
  }
}

void pack(const MatrixView& from, std::int64_t step, double* to) {
  switch (step) {
    case 4:
      return pack<4>(from, 1, to);
    case 8:
      return pack<8>(from, 1, to);
    default:
      return pack<16>(from, 1, to);
  }
}

class Product {
 public:
  Product() : kernels_(kernels_of<MatrixKernels>(selected_level())) {}

  // sums += a b, for at most block_terms terms and block_columns columns.
  void add(const MatrixView& sums, const MatrixView& a, const MatrixView& b, double sign) {
    const std::int64_t width = kernels_.tile_columns;
    pack(b, width, b_.data());
    for (std::int64_t row = 0; row < sums.rows; row += block_rows) {
      const std::int64_t rows = std::min(block_rows, sums.rows - row);
      const MatrixView part = a.part(row, 0, rows, a.columns);
      pack<tile_rows>({part.data, part.columns, part.rows, part.column_step, part.row_step}, sign,
                      a_.data());
      for (std::int64_t column = 0; column < sums.columns; column += width)
        for (std::int64_t i = 0; i < rows; i += tile_rows)
          add_tile(a_.data() + i * b.rows, b_.data() + column * b.rows, b.rows,
                   sums.part(row + i, column, std::min(tile_rows, rows - i),
                             std::min(width, sums.columns - column)));
    }
  }

 private:
  void add_tile(const double* a, const double* b, std::int64_t terms, const MatrixView& sums) {
    if (sums.rows == tile_rows && sums.columns == kernels_.tile_columns)
      return kernels_.add_tile(a, b, terms, sums.data, sums.row_step);
    std::array<double, tile_rows * most_tile_columns> tile{};
    for (std::int64_t row = 0; row < sums.rows; ++row)
      std::copy_n(&sums.at(row, 0), sums.columns, &tile[row * most_tile_columns]);
    kernels_.add_tile(a, b, terms, tile.data(), most_tile_columns);
    for (std::int64_t row = 0; row < sums.rows; ++row)
      std::copy_n(&tile[row * most_tile_columns], sums.columns, &sums.at(row, 0));
  }

  const MatrixKernels& kernels_;
  std::vector<double> a_ = std::vector<double>(block_rows * block_terms);
  std::vector<double> b_ = std::vector<double>(block_columns * block_terms);
};

static_assert(block_columns % most_tile_columns == 0 && block_rows % tile_rows == 0);

}  // namespace

void add_product(const MatrixView& sums, const MatrixView& a, const MatrixView& b, bool subtract) {
  const IeeeArithmetic ieee;
  Product product;
  for (std::int64_t column = 0; column < sums.columns; column += block_columns) {
    const std::int64_t columns = std::min(block_columns, sums.columns - column);
    for (std::int64_t term = 0; term < b.rows; term += block_terms) {
      const std::int64_t terms = std::min(block_terms, b.rows - term);
      product.add(sums.part(0, column, sums.rows, columns), a.part(0, term, a.rows, terms),
                  b.part(term, column, terms, columns), subtract ? -1 : 1);
    }
  }
}

namespace {

class Rounding {
 public:
  explicit Rounding(const TermRounding& terms)
      : terms_(terms),
        row_(terms.groups * terms.columns),
        aim_(static_cast<std::size_t>(std::min(block_terms, terms.terms) * row_)) {}

  // Rounds the terms [first, last), later ones first.
  void round(std::int64_t first, std::int64_t last) {
    first_ = first;
    std::copy_n(terms_.weights + first * row_, (last - first) * row_, aim_.data());
    add_errors(first, last, last, terms_.terms);
    for (std::int64_t end = last; end > first;) {
      const std::int64_t start = std::max(first, end - few_terms);
      add_errors(start, end, end, last);
      for (std::int64_t term = end - 1; term >= start; --term) round_term(term, end);
      end = start;
    }
  }

 private:
  double* aim(std::int64_t term) { return aim_.data() + (term - first_) * row_; }

  // Adds the errors of the terms [from, to) to [first, last).
  void add_errors(std::int64_t first, std::int64_t last, std::int64_t from, std::int64_t to) {
    if (from == to) return;
    const std::int64_t columns = terms_.columns;
    for (std::int64_t group = 0; group < terms_.groups; ++group)
      add_product({aim(first) + group * columns, last - first, columns, row_, 1},
                  triangle(group).part(first, from, last - first, to - from),
                  {terms_.weights + from * row_ + group * columns, to - from, columns, row_, 1},
                  false);
  }

  // Rounds a term after adding the errors of later ones before `end`.
  void round_term(std::int64_t term, std::int64_t end) {
    double* const sums = aim(term);
    double* const errors = terms_.weights + term * row_;
    for (std::int64_t group = 0; group < terms_.groups && term + 1 < end; ++group) {
      const std::int64_t column = group * terms_.columns;
      const MatrixView& factors = triangle(group);
      kernels_.add_rows(&factors.at(term, term + 1), factors.column_step, errors + row_ + column,
                        row_, end - term - 1, sums + column, terms_.columns);
    }
    float* const rounded = terms_.rounded + term * row_;
    kernels_.narrow(sums, rounded, row_);
    terms_.round(term);
    kernels_.subtract(rounded, errors, row_);
  }

  const MatrixView& triangle(std::int64_t group) const {
    return terms_.triangles[static_cast<std::size_t>(group)];
  }

  const TermRounding& terms_;
  const std::int64_t row_;
  const MatrixKernels& kernels_ = kernels_of<MatrixKernels>(selected_level());
  std::vector<double> aim_;
  std::int64_t first_ = 0;
};

}  // namespace

void round_terms(const TermRounding& terms) {
  const IeeeArithmetic ieee;
  Rounding rounding(terms);
  for (std::int64_t last = terms.terms; last > 0;) {
    const std::int64_t first = std::max<std::int64_t>(0, last - block_terms);
    rounding.round(first, last);
    last = first;
  }
}

}  // namespace anybit
