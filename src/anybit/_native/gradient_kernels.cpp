// SPDX-License-Identifier: Apache-2.0
// The loops of the backward pass. Compiled once per instruction set: see kernel_loops.hpp.
#include "gradient_kernels.hpp"

#include "../ops/operators.hpp"
#include "kernel_loops.hpp"

namespace anybit::ANYBIT_ISA {
namespace {

template <class T>
[[gnu::always_inline]] inline T carried(T gradient, T partial) {
  return partial == T(0) ? T(0) : gradient * partial;
}

template <class T>
struct Row {
  const T* x;
  const T* gradient;
  T* out;
  T* products;
  std::int64_t length, plane;
};

template <class Op, bool parameters, class T>
[[gnu::always_inline]] inline void differentiate_row(const Row<T>& row, auto partials_at) {
  const T* const x = row.x;
  const T* const gradient = row.gradient;
  T* const out = row.out;
  T* const products = row.products;
  const std::int64_t plane = row.plane;
  for_each_element(row.length, [=](std::int64_t i) {
    const T arriving = gradient[i];
    const auto partials = partials_at(x[i], i);
    out[i] = carried(arriving, partials[0]);
    if constexpr (parameters)
      for (std::size_t p = 1; p < partials.size(); ++p)
        products[static_cast<std::int64_t>(p - 1) * plane + i] = carried(arriving, partials[p]);
  });
}

template <class Op, class T, int variant, bool uniform, bool parameters, std::size_t... column>
[[gnu::always_inline]] inline void differentiate_row(const Row<T>& row, const T* prepared,
                                                     std::int64_t plane,
                                                     std::index_sequence<column...>) {
  if constexpr (uniform) {
    const T one[] = {prepared[static_cast<std::int64_t>(column) * plane]...};
    differentiate_row<Op, parameters>(
        row, [&](T x, std::int64_t) { return Op::template partials<variant>(x, one[column]...); });
  } else {
    differentiate_row<Op, parameters>(row, [&](T x, std::int64_t i) {
      return Op::template partials<variant>(
          x, prepared[static_cast<std::int64_t>(column) * plane + i]...);
    });
  }
}

template <class Op, class T, int variant, bool uniform, bool parameters>
void differentiate(const GradientRows& all) {
  const char* x = static_cast<const char*>(all.rows.x);
  const char* gradient = static_cast<const char*>(all.gradient);
  char* out = static_cast<char*>(all.rows.out);
  const T* prepared = static_cast<const T*>(all.rows.prepared);
  T* products = static_cast<T*>(all.products);
  for (std::int64_t row = 0; row < all.rows.rows; ++row) {
    differentiate_row<Op, T, variant, uniform, parameters>(
        Row<T>{reinterpret_cast<const T*>(x), reinterpret_cast<const T*>(gradient),
               reinterpret_cast<T*>(out), products, all.rows.length, all.products_plane},
        prepared, all.rows.plane, std::make_index_sequence<columns<Op, T, true>>{});
    x += all.rows.x_step;
    gradient += all.gradient_step;
    out += all.rows.out_step;
    prepared += all.rows.prepared_step;
    if constexpr (parameters) products += all.rows.length;
  }
}

template <class Op, class T>
GradientKernel kernel_of() {
  static_assert(columns<Op, T, true> <= max_columns);
  static_assert(Op::differentiable.size() - 1 <= max_products);
  return []<int... variant>(std::integer_sequence<int, variant...>) {
    static constexpr Prepare prepares[] = {prepare<Op, T, variant, true>...};
    static constexpr Differentiate loops[2][2][Op::variants] = {
        {{differentiate<Op, T, variant, true, false>...},
         {differentiate<Op, T, variant, false, false>...}},
        {{differentiate<Op, T, variant, true, true>...},
         {differentiate<Op, T, variant, false, true>...}}};
    return GradientKernel{{static_cast<int>(columns<Op, T, true>), prepares},
                          {loops[0][0], loops[0][1]},
                          {loops[1][0], loops[1][1]}};
  }(std::make_integer_sequence<int, Op::variants>{});
}

GradientKernel kernel(int operator_index, bool float64) {
  GradientKernel found{};
  int index = 0;
  Operators::for_each([&]<class Op>() {
    if constexpr (requires { Op::differentiable; })
      if (index == operator_index)
        found = float64 ? kernel_of<Op, double>() : kernel_of<Op, float>();
    ++index;
  });
  return found;
}

// The lanes of a sum: the same number whatever the vector width, so that the result is the same.
constexpr int lanes = 16;

template <class T>
void sum_rows(const void* values, std::int64_t length, std::int64_t rows, double* sums,
              std::int64_t step) {
  const T* value = static_cast<const T*>(values);
  for (std::int64_t row = 0; row < rows; ++row, value += length) {
    double lane[lanes];
    for (double& each : lane) each = -0.0;
    std::int64_t i = 0;
    for (; i + lanes <= length; i += lanes)
      for (int l = 0; l < lanes; ++l) lane[l] += static_cast<double>(value[i + l]);
    for (; i < length; ++i) lane[i % lanes] += static_cast<double>(value[i]);
    for (int half = lanes / 2; half > 0; half /= 2)
      for (int l = 0; l < half; ++l) lane[l] += lane[l + half];
    sums[row * step] += lane[0];
  }
}

template <class T>
void add_rows(const void* values, std::int64_t length, std::int64_t rows, double* sums,
              std::int64_t step) {
  const T* value = static_cast<const T*>(values);
  for (std::int64_t row = 0; row < rows; ++row, value += length, sums += step)
    for_each_element(length, [=](std::int64_t i) { sums[i] += static_cast<double>(value[i]); });
}

}  // namespace

extern const GradientSet gradient_set;
const GradientSet gradient_set{ANYBIT_ISA_NAME,
                               kernel,
                               {sum_rows<float>, sum_rows<double>},
                               {add_rows<float>, add_rows<double>}};

}  // namespace anybit::ANYBIT_ISA
