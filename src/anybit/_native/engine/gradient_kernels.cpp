// SPDX-License-Identifier: Apache-2.0
// Loops of the backward pass. Compiled once per ISA level, see kernel_loops.hpp.
#include "gradient_kernels.hpp"

#include "kernel_loops.hpp"
#include "ops/operators.hpp"

namespace anybit::ANYBIT_ISA {
namespace {

// Number of differentiable inputs besides x. `partials` returns the derivative by x first (0 if x
// is an integer), then those by these inputs.
template <class Op>
constexpr std::size_t differentiable_parameters =
    Op::differentiable.size() - (Op::differentiable[0] == Op::inputs[0].name ? 1 : 0);

template <class T>
[[gnu::always_inline]] inline T carried(T gradient, T partial) {
  return partial == T(0) ? T(0) : gradient * partial;
}

template <class T>
struct Row {
  const T* x;
  const T* gradient;
  T* out;
  std::int64_t length;
  std::array<double*, max_products> sums;
};

// Lanes of a sum: fixed, so that results do not depend on the vector width.
constexpr int lanes = 16;

// Sums the lanes in a fixed order.
[[gnu::always_inline]] inline double total(const double* lane) {
  double eight[8], four[4];
  for (int l = 0; l < 8; ++l) eight[l] = lane[l] + lane[l + 8];
  for (int l = 0; l < 4; ++l) four[l] = eight[l] + eight[l + 4];
  return (four[0] + four[2]) + (four[1] + four[3]);
}

// One set of parameters for the whole row; the first `summed` parameters have one sum each.
template <std::size_t summed, class T>
[[gnu::always_inline]] inline void differentiate_uniform(const Row<T>& row, auto partials_of) {
  const T* const x = row.x;
  const T* const gradient = row.gradient;
  T* const out = row.out;
  double lane[summed + 1][lanes];
  for (auto& sums : lane)
    for (double& sum : sums) sum = -0.0;
  const auto element = [&](std::int64_t i, int l) {
    const T upstream = gradient[i];
    const auto partials = partials_of(x[i]);
    out[i] = carried(upstream, partials[0]);
    for (std::size_t p = 0; p < summed; ++p)
      lane[p][l] += static_cast<double>(carried(upstream, partials[p + 1]));
  };
  std::int64_t i = 0;
  for (; i + lanes <= row.length; i += lanes)
    for_each_element(lanes, [&](std::int64_t l) { element(i + l, static_cast<int>(l)); });
  for_each_element(row.length - i, [&](std::int64_t l) { element(i + l, static_cast<int>(l)); });
  for (std::size_t p = 0; p < summed; ++p) *row.sums[p] += total(lane[p]);
}

// Parameters vary by element; the first `summed` of them have a sum per element.
template <std::size_t summed, class T>
[[gnu::always_inline]] inline void differentiate_varying(const Row<T>& row, auto partials_at) {
  const T* const x = row.x;
  const T* const gradient = row.gradient;
  T* const out = row.out;
  const auto sums = row.sums;
  for_each_element(row.length, [=](std::int64_t i) {
    const T upstream = gradient[i];
    const auto partials = partials_at(x[i], i);
    out[i] = carried(upstream, partials[0]);
    for (std::size_t p = 0; p < summed; ++p)
      sums[p][i] += static_cast<double>(carried(upstream, partials[p + 1]));
  });
}

template <class Op, class T, int variant, bool uniform, std::size_t summed, std::size_t... column>
[[gnu::always_inline]] inline void differentiate_row(const Row<T>& row, const T* prepared,
                                                     std::int64_t plane,
                                                     std::index_sequence<column...>) {
  if constexpr (uniform) {
    const T one[] = {prepared[static_cast<std::int64_t>(column) * plane]...};
    const auto partials = [=](T x, std::int64_t = 0) {
      return Op::template partials<variant>(x, one[column]...);
    };
    if constexpr (summed == 0) differentiate_varying<summed>(row, partials);
    else differentiate_uniform<summed>(row, partials);
  } else {
    differentiate_varying<summed>(row, [=](T x, std::int64_t i) {
      return Op::template partials<variant>(
          x, prepared[static_cast<std::int64_t>(column) * plane + i]...);
    });
  }
}

// A loop per set of summed parameters takes long to compile. Rare variants have fewer loops: one
// writes the products of all parameters, requested or not, to a buffer, which functions common to
// all operators sum.
constexpr std::int64_t block = 256;
static_assert(block % lanes == 0);

template <class T>
using Products = T (*)[block];
template <class T>
using Piece = void(const Row<T>& row, const T* prepared, std::int64_t plane, Products<T> products);

template <class Op, class T, int variant, bool uniform, bool summed, std::size_t... column>
[[gnu::always_inline]] inline void compute_piece(const Row<T>& row, const T* prepared,
                                                 std::int64_t plane, Products<T> products,
                                                 std::index_sequence<column...>) {
  const T* const x = row.x;
  const T* const gradient = row.gradient;
  T* const out = row.out;
  const auto loop = [=, length = row.length](auto partials_at) {
    for_each_element(length, [=](std::int64_t i) {
      const T upstream = gradient[i];
      const auto partials = partials_at(x[i], i);
      out[i] = carried(upstream, partials[0]);
      if constexpr (summed)
        for (std::size_t p = 0; p < differentiable_parameters<Op>; ++p)
          products[p][i] = carried(upstream, partials[p + 1]);
    });
  };
  if constexpr (uniform) {
    const T one[] = {prepared[static_cast<std::int64_t>(column) * plane]...};
    loop([=](T x, std::int64_t) { return Op::template partials<variant>(x, one[column]...); });
  } else {
    loop([=](T x, std::int64_t i) {
      return Op::template partials<variant>(
          x, prepared[static_cast<std::int64_t>(column) * plane + i]...);
    });
  }
}

template <class Op, class T, int variant, bool uniform, bool summed>
void piece(const Row<T>& row, const T* prepared, std::int64_t plane, Products<T> products) {
  compute_piece<Op, T, variant, uniform, summed>(row, prepared, plane, products,
                                                 std::make_index_sequence<columns<Op, T, true>>{});
}

template <class T>
void add_to_lanes(const T* products, std::int64_t length, double* lane) {
  std::int64_t i = 0;
  for (; i + lanes <= length; i += lanes)
    for (int l = 0; l < lanes; ++l) lane[l] += static_cast<double>(products[i + l]);
  for (int l = 0; i < length; ++i, ++l) lane[l] += static_cast<double>(products[i]);
}

// Equals the sums of differentiate_uniform and differentiate_varying, to the bit. Out of line,
// because compilers would copy it per call.
template <class T, bool uniform>
[[gnu::noinline]] void sum_pieces(Piece<T>* piece, const Row<T>& row, const T* prepared,
                                  std::int64_t plane, std::size_t summed) {
  alignas(64) T products[max_products][block];
  double lane[max_products][lanes];
  for (std::size_t p = 0; p < summed; ++p)
    for (double& sum : lane[p]) sum = -0.0;
  for (std::int64_t first = 0; first < row.length; first += block) {
    const std::int64_t rest = row.length - first;
    const std::int64_t length = rest < block ? rest : block;
    piece(Row<T>{row.x + first, row.gradient + first, row.out + first, length, {}},
          uniform ? prepared : prepared + first, plane, products);
    for (std::size_t p = 0; p < summed; ++p) {
      if constexpr (uniform) {
        add_to_lanes(products[p], length, lane[p]);
      } else {
        const T* const product = products[p];
        double* const sum = row.sums[p] + first;
        for_each_element(length,
                         [=](std::int64_t i) { sum[i] += static_cast<double>(product[i]); });
      }
    }
  }
  if constexpr (uniform)
    for (std::size_t p = 0; p < summed; ++p) *row.sums[p] += total(lane[p]);
}

template <class T>
[[gnu::always_inline]] inline void for_each_row(const GradientRows& all, std::size_t summed,
                                                auto body) {
  const char* x = static_cast<const char*>(all.rows.x);
  const char* gradient = static_cast<const char*>(all.gradient);
  char* out = static_cast<char*>(all.rows.out);
  const T* prepared = static_cast<const T*>(all.rows.prepared);
  auto sums = all.sums;
  for (std::int64_t row = 0; row < all.rows.rows; ++row) {
    body(Row<T>{reinterpret_cast<const T*>(x), reinterpret_cast<const T*>(gradient),
                reinterpret_cast<T*>(out), all.rows.length, sums},
         prepared);
    x += all.rows.x_step;
    gradient += all.gradient_step;
    out += all.rows.out_step;
    prepared += all.rows.prepared_step;
    for (std::size_t p = 0; p < summed; ++p) sums[p] += all.sums_step;
  }
}

template <class T, bool uniform>
[[gnu::noinline]] void differentiate_pieces(Piece<T>* piece, const GradientRows& all,
                                            std::size_t summed, bool products) {
  for_each_row<T>(all, summed, [&](const Row<T>& row, const T* prepared) {
    if (products) sum_pieces<T, uniform>(piece, row, prepared, all.rows.plane, summed);
    else piece(row, prepared, all.rows.plane, nullptr);
  });
}

// Variants that training uses: the default rounding mode, and that of most quantizers.
template <class Op, int variant>
constexpr bool often_asked() {
  if constexpr (requires(typename Op::Attributes attributes) { attributes.rounding_mode; })
    return variant == 0 || variant == static_cast<int>(typename Op::Attributes{}.rounding_mode);
  return true;
}

template <class Op, class T, int variant, bool uniform, std::size_t summed>
void differentiate(const GradientRows& all) {
  if constexpr (often_asked<Op, variant>()) {
    for_each_row<T>(
        all, summed, [&](const Row<T>& row, const T* prepared) __attribute__((always_inline)) {
          differentiate_row<Op, T, variant, uniform, summed>(
              row, prepared, all.rows.plane, std::make_index_sequence<columns<Op, T, true>>{});
        });
  } else {
    constexpr bool products = summed > 0 || requires { requires Op::template seldom<variant>; };
    differentiate_pieces<T, uniform>(piece<Op, T, variant, uniform, products>, all, summed,
                                     products);
  }
}

// The loop of the first variant serves all variants if they agree in the requested gradients.
template <class Op, class T, int variant, bool uniform, std::size_t summed>
constexpr Differentiate loop_of() {
  constexpr int serving = [] {
    if constexpr (requires { Op::common_partials; }) {
      static_assert(Op::preparations == 1);
      if (summed < Op::common_partials) return 0;
    }
    return variant;
  }();
  return differentiate<Op, T, serving, uniform, summed>;
}

template <class Op, class T>
GradientKernel kernel_of() {
  constexpr std::size_t parameters = differentiable_parameters<Op>;
  static_assert(columns<Op, T, true> <= max_columns);
  static_assert(parameters <= max_products);
  return []<int... variant>(std::integer_sequence<int, variant...>) {
    static constexpr auto prepares =
        prepares_of<Op, T, true>(std::integer_sequence<int, variant...>{});
    static constexpr Differentiate loops[gradient_scopes][2][Op::variants] = {
        {{loop_of<Op, T, variant, true, 0>()...}, {loop_of<Op, T, variant, false, 0>()...}},
        {{loop_of<Op, T, variant, true, 1>()...}, {loop_of<Op, T, variant, false, 1>()...}},
        {{loop_of<Op, T, variant, true, parameters>()...},
         {loop_of<Op, T, variant, false, parameters>()...}}};
    GradientKernel kernel{{static_cast<int>(columns<Op, T, true>), prepares.data()}, {}};
    for (int scope = 0; scope < gradient_scopes; ++scope)
      kernel.loops[scope] = {loops[scope][0], loops[scope][1]};
    return kernel;
  }(std::make_integer_sequence<int, Op::variants>{});
}

GradientKernel kernel(int operator_index, bool float64) {
  GradientKernel kernel{};
  int index = 0;
  Operators::for_each([&]<class Op>() {
    if constexpr (requires { Op::differentiable; })
      if (index == operator_index)
        kernel = float64 ? kernel_of<Op, double>() : kernel_of<Op, float>();
    ++index;
  });
  return kernel;
}

constexpr GradientSet all{kernel};

}  // namespace
}  // namespace anybit::ANYBIT_ISA

template <>
const anybit::GradientSet& anybit::compiled<anybit::GradientSet, anybit::Level::ANYBIT_ISA>() {
  return ANYBIT_ISA::all;
}
