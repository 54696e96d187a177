// SPDX-License-Identifier: Apache-2.0
// Checking an application and running it; plan.cpp lays out its loops and parameters.
#include "application.hpp"

#include <algorithm>
#include <utility>

#include "floating_point.hpp"

namespace anybit {

void Application::Position::advance(const Loop& loop, std::int64_t steps) {
  x += loop.x * steps;
  out += loop.out * steps;
  table += loop.table * steps;
  for (std::size_t i = 0; i < max_parameters; ++i) parameters[i] += loop.parameters[i] * steps;
}

Application::Application(const OperatorInfo& op, const void* attributes,
                         std::span<const Tensor> inputs, const Tensor& out)
    : op_(op), attributes_(attributes), set_(kernels()) {
  const Tensor& x = inputs[0];
  x_type_ = x.type;
  out_type_ = result_type(op, attributes, x.type);
  if (x.rank > max_rank)
    throw Error(Error::Kind::value, "arrays of more than " + std::to_string(max_rank) +
                                        " dimensions are not supported, got " +
                                        std::to_string(x.rank));
  const IeeeArithmetic ieee;
  std::array<Range, max_inputs> ranges;
  check_inputs(op, attributes, inputs, ranges.data());

  if (std::any_of(x.shape, x.shape + x.rank, [](auto size) { return size == 0; })) {
    size_ = 0;  // and the other sizes may be anything
    return;
  }
  float64_ = x.type == ElementType::float64;
  variant_ = op.variant(attributes, float64_, ranges.data());
  kernel_ = set_.kernel(op.index, float64_);
  x_ = static_cast<const char*>(x.data);
  out_ = static_cast<char*>(out.data);
  parameter_count_ = static_cast<int>(op.inputs.size()) - 1;
  for (int i = 0; i < parameter_count_; ++i) {
    const bool given = static_cast<std::size_t>(i) + 1 < inputs.size() && inputs[i + 1].given;
    absent_[i] = op.inputs[i + 1].absent;
    parameters_[i] = given ? inputs[i + 1] : Tensor{&absent_[i], ElementType::float64};
  }
  lay_out_loops(x, out, {parameters_.data(), static_cast<std::size_t>(parameter_count_)});
  merge_loops();
  const Loop& inner = loop_[loops_ - 1];
  const ElementType computed = float64_ ? ElementType::float64 : ElementType::float32;
  direct_ = x.type == computed && (out_type_ == computed || !is_floating(out_type_)) &&
            inner.x == size_of(x.type) && inner.out == size_of(out_type_);
  plan_table();
}

// Gathers the parameters at the steps [first, first + count) along one loop (-1: along none) and
// prepares them.
void Application::prepare(const Position& at, int along, std::int64_t first, std::int64_t count,
                          void* prepared, std::int64_t plane, Scratch& scratch) const {
  const void* gathered[max_parameters];
  for (int p = 0; p < parameter_count_; ++p) {
    const Tensor& parameter = parameters_[p];
    const bool wide = float64_ || op_.inputs[p + 1].domain.integer;
    const std::int64_t step = along < 0 ? 0 : loop_[along].parameters[p];
    set_.load[static_cast<int>(parameter.type)][wide ? 1 : 0](
        static_cast<const char*>(parameter.data) + at.parameters[p] + first * step, step, count,
        scratch.gathered[p]);
    gathered[p] = scratch.gathered[p];
  }
  kernel_.prepare[variant_](attributes_, gathered, count, prepared, plane);
}

void Application::run(std::int64_t first, std::int64_t last) const noexcept {
  if (first >= last) return;
  const IeeeArithmetic ieee;
  Scratch scratch;
  std::array<std::int64_t, max_rank> index;
  Position at;
  std::int64_t rest = first / row_;
  for (int i = row_loop_ - 1; i >= 0; rest /= loop_[i].size, --i) {
    index[i] = rest % loop_[i].size;
    at.advance(loop_[i], index[i]);
  }
  // Rows that start at the same or the next entry of the table go to the kernel many at a time.
  const bool by_rows = direct_ && plane_ > 0 && row_loop_ > 0 && (period_ == 0 || period_ == row_);
  for (std::int64_t begin = first % row_; first < last; begin = 0) {
    std::int64_t rows = 1;
    if (by_rows && begin == 0 && last - first >= row_) {
      rows = std::min((last - first) / row_, loop_[row_loop_ - 1].size - index[row_loop_ - 1]);
      run_rows(at, rows);
      first += rows * row_;
    } else {
      const std::int64_t end = std::min(row_, begin + last - first);
      run_row(at, begin, end, scratch);
      first += end - begin;
    }
    for (int i = row_loop_ - 1; i >= 0; --i, rows = 1) {
      at.advance(loop_[i], rows);
      index[i] += rows;
      if (index[i] < loop_[i].size) break;
      at.advance(loop_[i], -loop_[i].size);
      index[i] = 0;
    }
  }
}

void Application::run_rows(const Position& at, std::int64_t rows) const {
  const Loop& outer = loop_[row_loop_ - 1];
  const Apply* const apply = period_ == 0 ? kernel_.uniform : kernel_.varying;
  apply[variant_]({x_ + at.x, out_ + at.out, row_, table_ + at.table * element_size(), plane_, rows,
                   outer.x, outer.out, outer.table});
}

void Application::run_row(const Position& at, std::int64_t first, std::int64_t last,
                          Scratch& scratch) const {
  const Loop& inner = loop_[loops_ - 1];
  const bool uniform = period_ == 0;
  if (plane_ == 0 && uniform) prepare(at, -1, 0, 1, scratch.prepared, block, scratch);
  for (std::int64_t count = 0; first < last; first += count) {
    count = direct_ ? last - first : std::min(last - first, block);
    Rows rows{x_ + at.x + first * inner.x, out_ + at.out + first * inner.out, count,
              scratch.prepared, block};
    if (plane_ > 0) {
      const std::int64_t phase = uniform ? 0 : first % period_;
      rows.prepared = table_ + (at.table + phase) * element_size();
      rows.plane = plane_;
      if (!uniform) count = rows.length = std::min(count, period_ - phase);
      if (!uniform && direct_ && count == period_) {
        rows.rows = (last - first) / period_;
        rows.x_step = period_ * inner.x;
        rows.out_step = period_ * inner.out;
        count *= rows.rows;
      }
    } else if (!uniform) {
      count = rows.length = std::min(count, block);
      prepare(at, loops_ - 1, first, count, scratch.prepared, block, scratch);
    }
    if (direct_) (uniform ? kernel_.uniform : kernel_.varying)[variant_](rows);
    else run_converted(rows, inner, scratch);
  }
}

// Runs a short row by way of scratch arrays: where x or out is strided or of another type.
void Application::run_converted(Rows rows, const Loop& inner, Scratch& scratch) const {
  const int wide = float64_ ? 1 : 0;
  const void* const x = std::exchange(rows.x, scratch.x);
  void* const out = std::exchange(rows.out, scratch.out);
  set_.load[static_cast<int>(x_type_)][wide](x, inner.x, rows.length, scratch.x);
  (period_ == 0 ? kernel_.uniform : kernel_.varying)[variant_](rows);
  set_.store[static_cast<int>(out_type_)][wide](scratch.out, rows.length, out, inner.out);
}

}  // namespace anybit
