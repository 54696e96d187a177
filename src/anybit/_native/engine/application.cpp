// SPDX-License-Identifier: Apache-2.0
#include "application.hpp"

#include <algorithm>
#include <utility>

#include "_native/isa/ieee_arithmetic.hpp"

namespace anybit {

Application::Application(const OperatorInfo& op, const void* attributes,
                         std::span<const Tensor> inputs, const Tensor& out)
    : ElementwisePlan(op, attributes, inputs) {
  if (size() == 0) return;
  const Tensor& x = inputs[0];
  kernel_ = set_.kernel(op.index, float64_);
  x_ = static_cast<const char*>(x.data);
  out_ = static_cast<char*>(out.data);
  lay_out({x, out}, kernel_.preparation);
  direct_ = is_direct(inner().x, inner().out);
}

void Application::run(const Workers& workers) const {
  workers.split(size(), elements_per_thread,
                [this](std::int64_t first, std::int64_t last) noexcept { run_range(first, last); });
}

void Application::run_range(std::int64_t first, std::int64_t last) const noexcept {
  if (first >= last) return;
  const IeeeArithmetic ieee;
  Scratch scratch;
  // The kernel loops over many rows itself.
  walk(
      first, last, direct_ && has_entries_by_row(),
      [&](const Position& at, std::int64_t begin, std::int64_t end) {
        run_row(at, begin, end, scratch);
      },
      [&](const Position& at, std::int64_t rows) { run_rows(at, rows, scratch); });
}

void Application::run_rows(const Position& at, std::int64_t count, Scratch& scratch) const {
  const Loop& outer = loop_[row_loop_ - 1];
  Rows rows{x_ + at.x, out_ + at.out, row_, nullptr, 0, count, outer.x, outer.out, outer.table};
  find_parameters(rows, at, 0, scratch);
  (period_ == 0 ? kernel_.uniform : kernel_.varying)[variant_](rows);
}

void Application::run_row(const Position& at, std::int64_t first, std::int64_t last,
                          Scratch& scratch) const {
  const bool uniform = period_ == 0;
  Rows rows{};
  for (std::int64_t count = 0; first < last; first += count) {
    rows.x = x_ + at.x + first * inner().x;
    rows.out = out_ + at.out + first * inner().out;
    rows.length = direct_ ? last - first : std::min(last - first, block);
    rows.rows = 1;
    find_parameters(rows, at, first, scratch);
    count = rows.length;
    if (!uniform && direct_ && count == period_) {
      rows.rows = (last - first) / period_;
      rows.x_step = period_ * inner().x;
      rows.out_step = period_ * inner().out;
      count *= rows.rows;
    }
    if (direct_) (uniform ? kernel_.uniform : kernel_.varying)[variant_](rows);
    else run_converted(rows, scratch);
  }
}

// Runs a short row through scratch arrays, if x or out is strided or of another type.
void Application::run_converted(Rows rows, Scratch& scratch) const {
  const int wide = float64_ ? 1 : 0;
  const void* const x = std::exchange(rows.x, scratch.x);
  void* const out = std::exchange(rows.out, scratch.out);
  set_.load[static_cast<int>(x_type_)][wide](x, inner().x, rows.length, scratch.x);
  (period_ == 0 ? kernel_.uniform : kernel_.varying)[variant_](rows);
  set_.store[static_cast<int>(out_type_)][wide](scratch.out, rows.length, out, inner().out);
}

}  // namespace anybit
