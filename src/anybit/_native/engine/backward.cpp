// SPDX-License-Identifier: Apache-2.0
// Backward pass; backward_sums.cpp sums the gradients of parameters.
#include "backward.hpp"

#include <algorithm>

#include "_native/isa/ieee_arithmetic.hpp"

namespace anybit {

namespace {

// Below this number, a second thread costs more than it saves.
constexpr std::int64_t elements_per_backward_thread = 64 * 1024;

}  // namespace

Backward::Backward(const OperatorInfo& op, const void* attributes, std::span<const Tensor> inputs,
                   const Gradients& gradients)
    : ElementwisePlan(op, attributes, inputs), gradients_(kernels_of<GradientSet>(level_)) {
  const Tensor& x = inputs[0];
  check_gradient(op, gradients.upstream, x);
  const std::uint32_t summed = plan_sums(gradients);
  if (size() == 0) return;
  const bool wants_x = gradients.of_x.given;
  const Tensor& out = wants_x ? gradients.of_x : x;
  kernel_ = gradients_.kernel(op.index, float64_);
  x_ = static_cast<const char*>(x.data);
  upstream_ = static_cast<const char*>(gradients.upstream.data);
  upstream_type_ = gradients.upstream.type;
  out_ = wants_x ? static_cast<char*>(out.data) : nullptr;
  lay_out({x, out, &gradients.upstream}, kernel_.preparation, summed);

  const ElementType computed = float64_ ? ElementType::float64 : ElementType::float32;
  const auto direct = [&](ElementType type, std::int64_t step) {
    return type == computed && step == size_of(type);
  };
  direct_x_ = direct(x.type, inner().x);
  direct_upstream_ = direct(upstream_type_, inner().gradient);
  direct_out_ = wants_x && direct(x.type, inner().out);
  direct_ = direct_x_ && direct_upstream_ && (direct_out_ || !wants_x);
  longest_ = direct_ && wants_x ? size() : block;
  plan_chunks();
}

void Backward::run(const Workers& workers) {
  const IeeeArithmetic ieee;
  if (sums_.empty()) {
    workers.split(
        size(), elements_per_backward_thread,
        [&](std::int64_t first, std::int64_t last) noexcept { run_part(first, last, nullptr); });
    return;
  }
  const std::int64_t chunks = chunk_ == 0 ? 0 : (size() + chunk_ - 1) / chunk_;
  std::vector<double> sums(static_cast<std::size_t>(chunks * chunk_sums_), nothing);
  workers.run(static_cast<int>(chunks), [&](int chunk) noexcept {
    const std::int64_t first = chunk * chunk_;
    run_part(first, std::min(size(), first + chunk_), sums.data() + chunk * chunk_sums_);
  });
  for (std::int64_t chunk = 1; chunk < chunks; ++chunk)
    for (std::int64_t i = 0; i < chunk_sums_; ++i) sums[i] += sums[chunk * chunk_sums_ + i];
  deliver(sums);
}

void Backward::run_part(std::int64_t first, std::int64_t last, double* sums) noexcept {
  if (first >= last) return;
  const IeeeArithmetic ieee;
  Buffers buffers;
  walk(
      first, last, direct_ && has_entries_by_row() && row_ <= longest_,
      [&](const Position& at, std::int64_t begin, std::int64_t end) {
        run_row(at, begin, end, sums, buffers);
      },
      [&](const Position& at, std::int64_t rows) { run_rows(at, rows, sums, buffers); });
}

void Backward::run_rows(const Position& at, std::int64_t count, double* sums, Buffers& buffers) {
  const Loop& outer = loop_[row_loop_ - 1];
  GradientRows all{{nullptr, nullptr, row_, nullptr, 0, count, outer.x, outer.out, outer.table},
                   nullptr,
                   outer.gradient};
  find_parameters(all.rows, at, 0, buffers.scratch);
  differentiate(at, 0, all, sums, buffers);
}

void Backward::run_row(const Position& at, std::int64_t first, std::int64_t last, double* sums,
                       Buffers& buffers) {
  GradientRows all{};
  Rows& rows = all.rows;
  for (std::int64_t count = 0; first < last; first += count) {
    rows.rows = 1;
    rows.length = std::min(last - first, longest_);
    find_parameters(rows, at, first, buffers.scratch);
    count = rows.length;
    if (period_ > 0 && plane_ > 0 && direct_ && count == period_) {
      rows.rows = (last - first) / period_;
      rows.x_step = period_ * inner().x;
      rows.out_step = period_ * inner().out;
      all.gradient_step = period_ * inner().gradient;
      count *= rows.rows;
    }
    differentiate(at, first, all, sums, buffers);
  }
}

// Runs the kernel on rows from a position on, through scratch arrays of one row if an operand is
// strided or of another type.
void Backward::differentiate(const Position& at, std::int64_t first, GradientRows all, double* sums,
                             Buffers& buffers) {
  const int wide = float64_ ? 1 : 0;
  Rows& rows = all.rows;
  rows.x = x_ + at.x + first * inner().x;
  if (!direct_x_) {
    set_.load[static_cast<int>(x_type_)][wide](rows.x, inner().x, rows.length, buffers.scratch.x);
    rows.x = buffers.scratch.x;
  }
  all.gradient = upstream_ + at.gradient + first * inner().gradient;
  if (!direct_upstream_) {
    set_.load[static_cast<int>(upstream_type_)][wide](all.gradient, inner().gradient, rows.length,
                                                      buffers.gradient);
    all.gradient = buffers.gradient;
  }
  char* const out = out_ == nullptr ? nullptr : out_ + at.out + first * inner().out;
  rows.out = direct_out_ ? static_cast<void*>(out) : buffers.scratch.out;
  if (!direct_out_) rows.out_step = 0;  // all rows to the same place
  point_to_sums(at, first, all, sums, buffers);
  kernel_.loops[scope_][period_ > 0 ? 1 : 0][variant_](all);
  if (plane_ == 0 && period_ > 0) add_elements(at, first, rows.length, sums, buffers);
  if (out != nullptr && !direct_out_)
    set_.store[static_cast<int>(out_type_)][wide](rows.out, rows.length, out, inner().out);
}

}  // namespace anybit
