// SPDX-License-Identifier: Apache-2.0
// Function pointers to the loops that are compiled once per ISA level.
#pragma once

#include <array>
#include <cstdint>

#include "_native/isa/levels.hpp"
#include "ops/types.hpp"

namespace anybit {

// Limits of inputs, and of prepared parameters per element.
inline constexpr int max_inputs = 6;
inline constexpr int max_columns = 9;

// Parameters are stored by column, `plane` elements apart.

// prepared columns <- gathered input columns (compute type; double for integer inputs). Those of
// operators that reduce blocks begin with the magnitudes of the blocks.
using Prepare = void (*)(const void* attributes, const void* const* gathered, std::int64_t count,
                         void* prepared, std::int64_t plane);
// out[i] <- operator(x[i]) over contiguous rows; x and out may be the same array.
struct Rows {
  const void* x;
  void* out;
  std::int64_t length;  // elements in a row
  const void* prepared;
  std::int64_t plane;
  std::int64_t rows = 1;
  std::int64_t x_step = 0;  // bytes from one row to the next
  std::int64_t out_step = 0;
  std::int64_t prepared_step = 0;  // elements from one row's parameters to the next row's
};
using Apply = void (*)(const Rows& rows);
// out[i] <- x[i] converted to the compute type; x strided in bytes, out contiguous.
using Load = void (*)(const void* x, std::int64_t stride, std::int64_t count, void* out);
// out[i] <- x[i] converted to the element type; x contiguous, out strided in bytes. Null for types
// that results never have.
using Store = void (*)(const void* x, std::int64_t count, void* out, std::int64_t stride);

// magnitude <- max(magnitude, |x[i]|) in the compute type; NaN counts as more than infinity.
using Reduce = void (*)(const void* x, std::int64_t count, void* magnitude);
// magnitudes[i] <- max(magnitudes[i], |x[i]|) for rows of x, `step` bytes apart.
using ReduceRows = void (*)(const void* x, std::int64_t count, std::int64_t rows, std::int64_t step,
                            void* magnitudes);
// A contiguous row of blocks; the last one may be shorter. x and out may be the same array.
struct BlockRow {
  const void* attributes;
  const void* x;
  void* out;
  std::int64_t length;
  std::int64_t block;
  const void* const* gathered;  // a parameter each, in the compute type; null before the first one
};
using ApplyBlocks = void (*)(const BlockRow& row);

// Preparation of parameters, by variant, and the number of columns of the result.
struct Preparation {
  int columns;
  const Prepare* prepare;
};

// Loops of an operator for a compute type, by variant. `uniform` takes one set of prepared
// parameters for all elements, `varying` one per element.
struct Kernel {
  Preparation preparation;
  const Apply* uniform;
  const Apply* varying;
  const ApplyBlocks* blocks;  // null for elementwise operators
};

// Kernel family of the operators' loops. Second index: 0 for float32, 1 for float64.
struct KernelSet {
  static constexpr Level serving(Level level) { return of_loops(level); }

  Kernel (*kernel)(int operator_index, bool float64);
  std::array<std::array<Load, 2>, element_type_count> load;
  std::array<std::array<Store, 2>, element_type_count> store;
  std::array<Reduce, 2> reduce_all;
  std::array<ReduceRows, 2> reduce_rows;
};

}  // namespace anybit
