// SPDX-License-Identifier: Apache-2.0
#include "matrix_kernels.hpp"

#include "_native/isa/register_bytes.hpp"
#include "kernel_loops.hpp"

namespace anybit::ANYBIT_ISA {
namespace {

using Register [[gnu::vector_size(register_bytes)]] = double;
using Stored [[gnu::vector_size(register_bytes), gnu::aligned(8), gnu::may_alias]] = double;
constexpr std::int64_t lanes = register_bytes / 8;
static_assert(2 * lanes <= most_tile_columns);

[[gnu::always_inline]] inline Register read(const double* at) {
  return *reinterpret_cast<const Stored*>(at);
}

[[gnu::always_inline]] inline void write(double* at, Register values) {
  *reinterpret_cast<Stored*>(at) = values;
}

void add_tile(const double* a, const double* b, std::int64_t terms, double* sums,
              std::int64_t step) {
  static_assert(tile_rows == 4);
  Register s00 = read(sums), s01 = read(sums + lanes);
  Register s10 = read(sums + step), s11 = read(sums + step + lanes);
  Register s20 = read(sums + 2 * step), s21 = read(sums + 2 * step + lanes);
  Register s30 = read(sums + 3 * step), s31 = read(sums + 3 * step + lanes);
  for (std::int64_t k = 0; k < terms; ++k, a += tile_rows, b += 2 * lanes) {
    const Register b0 = read(b), b1 = read(b + lanes);
    s00 += a[0] * b0, s01 += a[0] * b1;
    s10 += a[1] * b0, s11 += a[1] * b1;
    s20 += a[2] * b0, s21 += a[2] * b1;
    s30 += a[3] * b0, s31 += a[3] * b1;
  }
  write(sums, s00), write(sums + lanes, s01);
  write(sums + step, s10), write(sums + step + lanes, s11);
  write(sums + 2 * step, s20), write(sums + 2 * step + lanes, s21);
  write(sums + 3 * step, s30), write(sums + 3 * step + lanes, s31);
}

// Four registers of a row at a time: their sums do not wait for one another.
void add_rows(const double* factors, std::int64_t factor_step, const double* rows,
              std::int64_t row_step, std::int64_t count, double* row, std::int64_t columns) {
  std::int64_t j = 0;
  for (; j + 4 * lanes <= columns; j += 4 * lanes) {
    Register s0 = read(row + j), s1 = read(row + j + lanes);
    Register s2 = read(row + j + 2 * lanes), s3 = read(row + j + 3 * lanes);
    for (std::int64_t k = count - 1; k >= 0; --k) {
      const double factor = factors[k * factor_step];
      const double* const from = rows + k * row_step + j;
      s0 += factor * read(from), s1 += factor * read(from + lanes);
      s2 += factor * read(from + 2 * lanes), s3 += factor * read(from + 3 * lanes);
    }
    write(row + j, s0), write(row + j + lanes, s1);
    write(row + j + 2 * lanes, s2), write(row + j + 3 * lanes, s3);
  }
  for (; j < columns; ++j) {
    double sum = row[j];
    for (std::int64_t k = count - 1; k >= 0; --k)
      sum += factors[k * factor_step] * rows[k * row_step + j];
    row[j] = sum;
  }
}

void narrow(const double* from, float* to, std::int64_t count) {
  for_each_element(count, [&](std::int64_t i) { to[i] = static_cast<float>(from[i]); });
}

void subtract(const float* subtracted, double* differences, std::int64_t count) {
  for_each_element(count, [&](std::int64_t i) { differences[i] -= double{subtracted[i]}; });
}

constexpr MatrixKernels all{2 * lanes, add_tile, add_rows, narrow, subtract};

}  // namespace
}  // namespace anybit::ANYBIT_ISA

template <>
const anybit::MatrixKernels& anybit::compiled<anybit::MatrixKernels, anybit::Level::ANYBIT_ISA>() {
  return ANYBIT_ISA::all;
}
